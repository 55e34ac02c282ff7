// SPDX-License-Identifier: Apache-2.0
//
// A small model for the tests of this folder, the same on every rank without random numbers, and
// its exchange over a FakeNetwork.
#pragma once

#include <memory>
#include <string>
#include <torch/torch.h>
#include "exchange/exchange.h"
#include "fsdp/model_units.h"
#include "support/fake_ranks.h"

namespace sherd::fsdp::testing {

// Three layers of odd shapes, the last smaller than some worlds; one of them is frozen.
struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  torch::Tensor offset;
  NetImpl() {
    first = register_module("first", torch::nn::Linear(7, 15));
    second = register_module("second", torch::nn::Linear(15, 5));
    third = register_module("third", torch::nn::Linear(5, 1));
    offset = register_parameter(
        "offset", torch::full({5}, 0.25F), /*requires_grad=*/false);
    const torch::NoGradGuard no_grad;
    int salt = 0;
    for (auto& parameter : parameters()) {
      ++salt;
      parameter.copy_(torch::arange(parameter.numel(), torch::kFloat)
                          .mul(1.7)
                          .add(salt)
                          .sin()
                          .mul(0.4)
                          .view(parameter.sizes()));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return third(torch::tanh(second(torch::tanh(first(x))) + offset));
  }
};
TORCH_MODULE(Net);

// Rows [begin, end) of the step's batch.
inline torch::Tensor rows_of(int step, std::int64_t begin, std::int64_t end) {
  return torch::arange(begin * 7, end * 7, torch::kFloat)
      .mul(0.37)
      .add(step)
      .cos()
      .view({end - begin, 7});
}

inline torch::Tensor loss_of(Net& net, const torch::Tensor& x) {
  return (net->forward(x) - x.sum(1, true)).square().mean();
}

inline exchange::ModelSpec spec_of(
    const ModelUnits& model,
    exchange::ModelPlacement placement = exchange::ModelPlacement::kShard) {
  exchange::ModelSpec spec;
  spec.units = model.units;
  spec.placement = placement;
  return spec;
}

inline std::unique_ptr<exchange::Exchange> opened_exchange(
    test::FakeRank& self, const exchange::ModelSpec& spec) {
  auto exchange = self.network.exchange(self.rank);
  exchange->open(spec).throw_if_failed();
  return exchange;
}

inline std::string bytes_of(const torch::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace sherd::fsdp::testing
