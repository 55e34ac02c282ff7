// SPDX-License-Identifier: Apache-2.0
#include "device/host_memory.h"

#include <ATen/ops/empty.h>

namespace sherd::device {

at::Tensor empty_on_host(
    c10::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device) {
  return at::empty(
      sizes, at::TensorOptions().dtype(dtype).pinned_memory(!device.is_cpu()));
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) {
    return tensor.contiguous();
  }
  auto copy =
      empty_on_host(tensor.sizes(), tensor.scalar_type(), tensor.device());
  copy.copy_(tensor);
  return copy;
}

}  // namespace sherd::device
