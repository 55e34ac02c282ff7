// SPDX-License-Identifier: Apache-2.0
//
// Conversion for the operations that models make in fp32 whatever the dtype of their parameters.
// Thread rule: a pure function, any thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd::models {

// Returns fp16 and bf16 tensors as fp32, and fp32 and fp64 tensors as they are.
inline at::Tensor at_least_fp32(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

}  // namespace sherd::models
