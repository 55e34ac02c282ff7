// SPDX-License-Identifier: Apache-2.0
//
// Zeros whose pages are allocated only when they are written, for gradients that may never come:
// those that go to an optimizer's sinks, and those of parameters that start frozen. Thread rule: a
// pure function.
#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>

namespace sherd::exchange {

// A 1-D tensor. Throws Error if there is no memory.
at::Tensor untouched_zeros(
    std::int64_t numel, const at::TensorOptions& options);

}  // namespace sherd::exchange
