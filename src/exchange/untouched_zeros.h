// SPDX-License-Identifier: Apache-2.0
//
// Zeros whose pages are taken only when they are written, e.g. of gradients that may never come: those
// that go to an optimizer's sinks, and those of parameters that start frozen. Thread rule: a function.
#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>

namespace sherd::exchange {

// One dimension. Throws Error when there is no memory.
at::Tensor untouched_zeros(
    std::int64_t numel, const at::TensorOptions& options);

}  // namespace sherd::exchange
