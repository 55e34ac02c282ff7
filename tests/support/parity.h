// SPDX-License-Identifier: Apache-2.0
//
// Compares sharded training with the same training in one process on the concatenated batch: every
// rank runs both and compares its slices, gradients and losses.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include <sherd/fsdp/fully_shard.h>
#include <torch/torch.h>
#include "plan/flat_layout.h"

namespace sherd::test {

struct Parity {
  int steps = 3;
  std::int64_t rows_per_rank = 2;
  double learning_rate = 0.1;
  double tolerance = 1e-5;
  FullyShardOptions shard;
};

// Makes the model; must give equal values each time it is called.
template <typename Model>
using Maker = std::function<Model()>;

// Loss of the model on rows [begin, end) of the step's global batch: a mean
// over rows, so that ranks' losses average to the loss of the whole.
template <typename Model>
using Loss = std::function<torch::Tensor(
    Model&, int step, std::int64_t begin, std::int64_t end)>;

// Full value of each parameter by name, gathered from a sharded model.
inline torch::OrderedDict<std::string, torch::Tensor> full_parameters(
    torch::nn::Module& module, FullyShardedDataParallel& fsdp) {
  torch::OrderedDict<std::string, torch::Tensor> all;
  auto scope = fsdp.summon_full_parameters({.read_only = true});
  for (const auto& parameter : module.named_parameters()) {
    all.insert(parameter.key(), parameter.value().detach().clone());
  }
  return all;
}

inline void expect_close(
    const torch::Tensor& found,
    const torch::Tensor& expected,
    double tolerance,
    const std::string& what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  if (tolerance == 0.0) {
    EXPECT_TRUE(torch::equal(found, expected)) << what << " differs in bits";
  } else {
    EXPECT_TRUE(torch::allclose(found, expected, tolerance, tolerance))
        << what << " differs by "
        << (found - expected).abs().max().item<double>();
  }
}

template <typename Model>
void expect_parity(
    const World& world,
    const Maker<Model>& make,
    const Loss<Model>& loss,
    const Parity& options = {}) {
  const std::int64_t rows = options.rows_per_rank * world.size();
  Model reference = make();
  torch::optim::SGD reference_sgd(
      reference->parameters(),
      torch::optim::SGDOptions(options.learning_rate).momentum(0.9));
  Model model = make();
  auto fsdp = fully_shard(*model, world, options.shard);
  torch::optim::SGD sgd(
      fsdp.parameters(),
      torch::optim::SGDOptions(options.learning_rate).momentum(0.9));

  for (int step = 0; step < options.steps; ++step) {
    auto expected = loss(reference, step, 0, rows);
    expected.backward();
    const auto begin = world.rank() * options.rows_per_rank;
    auto found = loss(model, step, begin, begin + options.rows_per_rank);
    found.backward();
    const auto ours =
        loss(reference, step, begin, begin + options.rows_per_rank);
    expect_close(
        found.detach(), ours.detach(), options.tolerance,
        "loss of step " + std::to_string(step));
    reference_sgd.step();
    reference_sgd.zero_grad();
    sgd.step();
    fsdp.publish();
    sgd.zero_grad();
  }
  const auto all = full_parameters(*model, fsdp);
  for (const auto& parameter : reference->named_parameters()) {
    expect_close(
        all[parameter.key()], parameter.value().detach(), options.tolerance,
        parameter.key());
  }
  fsdp.close();
}

}  // namespace sherd::test
