// SPDX-License-Identifier: Apache-2.0
//
// Replicated training beside one process that runs every rank's pass in turn and
// averages their gradients: each rank compares its loss, every gradient and, at
// the end, every parameter, in bits, since both add in the order of ranks, over
// several hosts too.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <sherd/ddp/replicate.h>
#include <torch/torch.h>
#include "support/rank_parity.h"
#include "support/small_models.h"

namespace sherd::test {

// With buffers: running statistics.
struct NormImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  NormImpl() {
    linear = register_module("linear", torch::nn::Linear(3, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    fill_with_integers(*this);
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm(linear(x)); }
};
TORCH_MODULE(Norm);

struct ReplicaParity {
  int steps = 3;
  int micro_batches = 1;  // All but the last of a step under no_sync().
  MakeStep step = sign_steps();
  ReplicateOptions replicate = {};
};

inline void expect_same_gradients(
    const torch::nn::Module& module, const std::vector<NamedLeaf>& reference) {
  const auto found = module.named_parameters();
  for (const auto& leaf : reference) {
    const auto& gradient = found[leaf.name].grad();
    ASSERT_EQ(gradient.defined(), leaf.tensor.grad().defined())
        << "gradient of " << leaf.name;
    if (gradient.defined()) {
      EXPECT_EQ(gradient.strides(), found[leaf.name].strides()) << leaf.name;
      expect_close(
          gradient, leaf.tensor.grad(), 0.0, "gradient of " + leaf.name);
    }
  }
}

inline void expect_same_parameters(
    const torch::nn::Module& module, const std::vector<NamedLeaf>& reference) {
  const auto found = module.named_parameters();
  for (const auto& leaf : reference) {
    expect_close(
        found[leaf.name].detach(), leaf.tensor.detach(), 0.0, leaf.name);
  }
}

template <typename Model>
ReplicateReport expect_replica_parity(
    const World& world,
    const std::function<Model()>& make,
    const Pass<Model>& pass,
    const ReplicaParity& options = {}) {
  Model reference = make();
  Model model = make();
  const auto leaves = unique_parameters(*reference);
  const auto step_reference = options.step(tensors_of(leaves));
  auto ddp = replicate(*model, world, options.replicate);
  const auto step = options.step(model->parameters());
  for (int s = 0; s < options.steps; ++s) {
    for (int micro = 0; micro < options.micro_batches; ++micro) {
      const int batch = s * options.micro_batches + micro;
      std::optional<LocalGradientsScope> local;
      if (micro + 1 < options.micro_batches) {
        local.emplace(ddp.no_sync());
      }
      const auto expected = reference_backward<Model>(
          reference, leaves, pass, batch, world,
          {.strategy = Strategy::kNoShard});
      auto found = pass(model, batch, world.rank());
      found.backward();
      expect_close(
          found.detach(), expected, 0.0, "loss of " + std::to_string(batch));
    }
    expect_same_gradients(*model, leaves);
    step_reference();
    step();
  }
  expect_same_parameters(*model, leaves);
  const auto report = ddp.report();
  ddp.close();
  return report;
}

}  // namespace sherd::test
