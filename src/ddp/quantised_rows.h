// SPDX-License-Identifier: Apache-2.0
//
// QuantisedRows says where a tensor lies in an int8 message: rows of equally many elements, each
// with a scale in fp32, its largest magnitude / 127. Thread rule: any thread; operators run where
// the tensors are.
#pragma once

#include <cstdint>
#include <ATen/TensorOperators.h>

namespace sherd::ddp {

struct QuantisedRows {
  static constexpr std::int64_t kScaleBytes = sizeof(float);
  static constexpr float kLargest = 127.0F;

  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t scales_begin = 0;    // In bytes.
  std::int64_t elements_begin = 0;  // In bytes.

  // [rows, 1], fp32.
  at::Tensor scales(const at::Tensor& message) const {
    return message.narrow(0, scales_begin, rows * kScaleBytes)
        .view(at::kFloat)
        .view({rows, 1});
  }
  // [rows, columns], int8.
  at::Tensor elements(const at::Tensor& message) const {
    return message.narrow(0, elements_begin, rows * columns)
        .view(at::kChar)
        .view({rows, columns});
  }
  // [rows, columns], fp32.
  at::Tensor values(const at::Tensor& message) const {
    return elements(message) * scales(message);
  }

  // Writes `from` so that values() returns it, up to rounding. A row with a number that is not
  // finite becomes NaN. REQUIRES: [rows, columns] in fp32, with at least one column.
  void quantise(const at::Tensor& from, const at::Tensor& message) const {
    const auto to = scales(message);
    to.copy_(from.abs().amax(1, /*keepdim=*/true).div_(kLargest));
    // 0 if all numbers are 0, or if some number is not finite.
    elements(message).copy_(
        (from / to).round_().nan_to_num_(0.0).clamp_(-kLargest, kLargest));
  }
};

}  // namespace sherd::ddp
