// SPDX-License-Identifier: Apache-2.0
//
// Small modules and batches of small integers: sums of a few of them are exact in fp32 in any
// order, so that sharded and plain training must agree bit by bit.
#pragma once

#include <cstdint>
#include <vector>
#include <sherd/fsdp/units.h>
#include <torch/torch.h>

namespace sherd::test {

// Integers in [-2, 2] that depend on the position and `salt`.
inline torch::Tensor small_integers(
    const std::vector<std::int64_t>& sizes, std::int64_t salt) {
  std::int64_t numel = 1;
  for (const auto size : sizes) {
    numel *= size;
  }
  const auto i = torch::arange(numel, torch::kLong);
  return ((i * 7 + i.floor_divide(3) + salt * 11).remainder(5) - 2)
      .to(torch::kFloat)
      .reshape(sizes);
}

inline void fill_with_integers(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  std::int64_t salt = 1;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(small_integers(parameter.sizes().vec(), salt++));
  }
}

// Two rows of `width` integers that differ between batches and ranks: a salt counts modulo 5.
inline torch::Tensor integer_rows(int batch, int rank, std::int64_t width) {
  return small_integers({2, width}, 13 * batch + 7 * rank + 3);
}

// Odd shapes, and layers narrower than the number of ranks; ReLU keeps integers.
struct IntegerMlpImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  IntegerMlpImpl() {
    first = register_module("first", torch::nn::Linear(7, 15));
    second = register_module("second", torch::nn::Linear(15, 5));
    third = register_module("third", torch::nn::Linear(5, 1));
    fill_with_integers(*this);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return third(torch::relu(second(torch::relu(first(x)))));
  }
};
TORCH_MODULE(IntegerMlp);

inline torch::Tensor integer_loss(IntegerMlp& model, int batch, int rank) {
  return model->forward(integer_rows(batch, rank, 7)).sum();
}

// A loss whose gradients have an integer mean over up to four ranks, too.
inline torch::Tensor divisible_loss(IntegerMlp& model, int batch, int rank) {
  return integer_loss(model, batch, rank) * 12;
}

// Equal layers in a list, for policies, budgets and kill points.
struct ChainImpl : torch::nn::Module {
  torch::nn::ModuleList layers;
  torch::nn::Linear head{nullptr};
  ChainImpl(int count, std::int64_t width) {
    register_module("layers", layers);
    for (int i = 0; i < count; ++i) {
      layers->push_back(torch::nn::Linear(width, width));
    }
    head = register_module("head", torch::nn::Linear(width, 1));
    fill_with_integers(*this);
  }
  torch::nn::LinearImpl& layer(std::size_t i) {
    return *layers->ptr<torch::nn::LinearImpl>(i);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t i = 0; i < layers->size(); ++i) {
      // Small again after each layer, and still integers.
      x = layer(i).forward(x).clamp(-2, 2);
    }
    return head(x);
  }
};
TORCH_MODULE(Chain);

}  // namespace sherd::test
