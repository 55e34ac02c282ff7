// SPDX-License-Identifier: Apache-2.0
//
// The sum of a weight, with a backward that gives the weight a gradient of ones or, as a custom
// Function may, an undefined one.
#pragma once

#include <torch/torch.h>

namespace sherd::test {

enum class Gradient { kOnes, kUndefined };

class OptionalGradient : public torch::autograd::Function<OptionalGradient> {
 public:
  static torch::Tensor forward(
      torch::autograd::AutogradContext* context,
      const torch::Tensor& x,
      bool passes) {
    context->saved_data["passes"] = passes;
    return x.clone();
  }

  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::tensor_list& gradients) {
    const bool passes = context->saved_data["passes"].toBool();
    return {passes ? gradients[0] : torch::Tensor(), torch::Tensor()};
  }
};

inline torch::Tensor sum_with(const torch::Tensor& weight, Gradient gradient) {
  // A function's forward records no gradients: the product is the weight's use in training.
  return OptionalGradient::apply(weight * 1, gradient == Gradient::kOnes).sum();
}

}  // namespace sherd::test
