// SPDX-License-Identifier: Apache-2.0
//
// A model for tests on devices, and its batches: the same on every rank without a random number.
// Its first layer has equal shards on up to four ranks, the others have not; one parameter is
// frozen.
#pragma once

#include <torch/torch.h>

namespace sherd::test {

// Waves around 0, none like another.
inline void fill_parameters(torch::nn::Module& module, double height) {
  const torch::NoGradGuard no_grad;
  int salt = 0;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(torch::arange(parameter.numel(), torch::kFloat)
                        .mul(1.7)
                        .add(++salt)
                        .sin()
                        .mul(height)
                        .view(parameter.sizes()));
  }
}

struct DeviceMlpImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  torch::Tensor offset;
  DeviceMlpImpl() {
    first = register_module(
        "first",
        torch::nn::Linear(torch::nn::LinearOptions(16, 16).bias(false)));
    second = register_module("second", torch::nn::Linear(16, 5));
    third = register_module("third", torch::nn::Linear(5, 1));
    offset = register_parameter(
        "offset", torch::full({5}, 0.25F), /*requires_grad=*/false);
    fill_parameters(*this, 0.4);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return third(torch::tanh(second(torch::tanh(first(x))) + offset));
  }
};
TORCH_MODULE(DeviceMlp);

inline DeviceMlp mlp_on(const torch::Device& device) {
  DeviceMlp model;
  model->to(device);
  return model;
}

// Two rows for each batch and rank.
inline torch::Tensor batch_on(
    const torch::Device& device, int batch, int rank) {
  return torch::arange(32, torch::kFloat)
      .mul(0.37)
      .add(5 * batch + rank)
      .cos()
      .view({2, 16})
      .to(device);
}

inline torch::Tensor loss_of(DeviceMlp& model, const torch::Tensor& x) {
  return (model->forward(x).to(torch::kFloat) - x.sum(1, true)).square().mean();
}

}  // namespace sherd::test
