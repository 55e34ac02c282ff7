// SPDX-License-Identifier: Apache-2.0
//
// Modules whose parameters and buffers are on the meta device, with values that another one of the
// same class has.
#pragma once

#include <string>
#include <torch/torch.h>

namespace sherd::test {

// As a module made on the meta device would have it; the same objects.
inline void to_meta(const torch::Tensor& tensor) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(
      torch::empty(
          tensor.sizes(),
          torch::TensorOptions(tensor.scalar_type()).device(torch::kMeta))
          .getIntrusivePtr());
}

template <typename Module>
Module on_meta(Module module) {
  for (const auto& tensors : {module->parameters(), module->buffers()}) {
    for (const auto& tensor : tensors) {
      to_meta(tensor);
    }
  }
  return module;
}

// For FullyShardOptions::initialise: writes the values that `like` has.
template <typename Module>
auto values_like(const Module& like) {
  return [like](const std::string& name, const torch::Tensor& value) {
    const torch::NoGradGuard no_grad;
    const auto parameters = like->named_parameters();
    const auto* parameter = parameters.find(name);
    value.copy_(parameter ? *parameter : like->named_buffers()[name]);
  };
}

}  // namespace sherd::test
