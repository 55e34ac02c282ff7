// SPDX-License-Identifier: Apache-2.0
//
// Compares sharded training with one process that runs every rank's pass in turn and averages their
// gradients: each rank compares its loss, its slice of every gradient and, at the end, every
// parameter. Both add in the order of ranks, host by host, so they agree bit by bit; a tolerance is
// the exception. A pass may do anything (call submodules, run backwards of its own), and may differ
// between ranks.
#pragma once

#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include <torch/torch.h>
#include "base/rank_environment.h"
#include "exchange/make_exchange.h"
#include "fsdp/model_units.h"
#include "support/error_of.h"
#include "support/parity.h"
#include "world/host_segment.h"

namespace sherd::test {

using Leaves = std::vector<torch::Tensor>;
// Makes an optimizer step (and zero_grad) over leaves.
using MakeStep = std::function<std::function<void()>(const Leaves&)>;

// Moves every element by one against its gradient, so that integers stay integers.
inline MakeStep sign_steps() {
  return [](const Leaves& leaves) {
    return [leaves] {
      const torch::NoGradGuard no_grad;
      for (auto leaf : leaves) {
        if (leaf.grad().defined()) {
          leaf.sub_(leaf.grad().sign());
          leaf.mutable_grad().reset();
        }
      }
    };
  };
}

template <typename Optimizer, typename Options>
MakeStep steps_of(const Options& options) {
  return [options](const Leaves& leaves) {
    auto optimizer = std::make_shared<Optimizer>(leaves, options);
    return [optimizer] {
      optimizer->step();
      optimizer->zero_grad();
    };
  };
}

struct RankParity {
  int steps = 3;
  int micro_batches = 1;
  double tolerance = 0.0;  // 0 means equal bits.
  MakeStep step = sign_steps();
  int replicas = 1;
  FullyShardOptions shard;
};

// The loss of one rank's pass; that of the whole batch is the mean over ranks.
template <typename Model>
using Pass = std::function<torch::Tensor(Model&, int batch, int rank)>;

struct NamedLeaf {
  std::string name;
  torch::Tensor tensor;
};

// Each tied parameter once, under its first name.
inline std::vector<NamedLeaf> unique_parameters(
    const torch::nn::Module& module) {
  std::vector<NamedLeaf> leaves;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      leaves.push_back({item.key(), item.value()});
    }
  }
  return leaves;
}

inline Leaves tensors_of(const std::vector<NamedLeaf>& leaves) {
  Leaves tensors;
  for (const auto& leaf : leaves) {
    tensors.push_back(leaf.tensor);
  }
  return tensors;
}

// Groups of ranks whose gradients are added within the group first.
inline std::vector<std::vector<int>> added_together(
    const World& world, const FullyShardOptions& options) {
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  const bool asked = options.exchange == ExchangeKind::kHierarchical ||
      (options.exchange == ExchangeKind::kAuto &&
       exchange::choose_kind(
           world, all, exchange::Kind::kAuto, process_environment()) ==
           exchange::Kind::kHierarchical);
  return asked && options.strategy != Strategy::kNoShard
      ? world::ranks_by_host(world, all)
      : std::vector<std::vector<int>>{all};
}

// Runs every rank's pass on the reference and adds the mean gradient to what
// `.grad()` holds; returns the loss of `rank`.
template <typename Model>
torch::Tensor reference_backward(
    Model& reference,
    const std::vector<NamedLeaf>& leaves,
    const Pass<Model>& pass,
    int batch,
    const World& world,
    const FullyShardOptions& options = {}) {
  Leaves before;
  for (const auto& leaf : leaves) {
    before.push_back(leaf.tensor.grad());
    leaf.tensor.mutable_grad().reset();
  }
  torch::Tensor mine;
  Leaves sums(leaves.size());
  for (const auto& host : added_together(world, options)) {
    for (const int rank : host) {
      auto loss = pass(reference, batch, rank);
      loss.backward();
      if (rank == world.rank()) {
        mine = loss.detach();
      }
    }
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      auto& grad = leaves[i].tensor.mutable_grad();
      if (grad.defined()) {
        sums[i] = sums[i].defined() ? sums[i] + grad : grad;
      }
      grad.reset();
    }
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    auto& grad = leaves[i].tensor.mutable_grad();
    grad = sums[i];
    if (grad.defined()) {
      grad.mul_(1.0 / world.size());
    }
    if (before[i].defined()) {
      grad = grad.defined() ? before[i] + grad : before[i];
    }
  }
  return mine;
}

// This rank's elements of each parameter, from the plan.
class Slicing {
 public:
  Slicing(
      const torch::nn::Module& module,
      const World& world,
      const FullyShardOptions& options)
      : Slicing(module, Mesh(world), options) {}
  Slicing(
      const torch::nn::Module& module,
      const Mesh& mesh,
      const FullyShardOptions& options)
      : units_(fsdp::build_units(
            module,
            both_axes(options) ? mesh.world().size() : mesh.shard_size(),
            options)),
        rank_(
            both_axes(options) ? mesh.shard_index() * mesh.replicate_size() +
                    mesh.replicate_index()
                               : mesh.shard_index()),
        whole_(options.strategy == Strategy::kNoShard) {}

  torch::Tensor of(const std::string& name, const torch::Tensor& full) const {
    const auto& parameter = fsdp::find_parameter(units_, name);
    const auto& flat = units_.flat_of(parameter);
    const auto range =
        plan::parameter_slice(flat.layout, parameter.position, rank_)
            .in_parameter;
    const auto elements = full.reshape({-1});
    return whole_ ? elements : elements.narrow(0, range.begin, range.numel());
  }

 private:
  static bool both_axes(const FullyShardOptions& options) {
    return options.optimizer_axes == OptimizerAxes::kBoth;
  }

  fsdp::ModelUnits units_;
  int rank_;
  bool whole_;
};

inline void expect_gradients(
    const Slicing& slicing,
    const std::vector<NamedLeaf>& reference,
    const FullyShardedDataParallel& fsdp,
    double tolerance) {
  for (const auto& item : fsdp.named_parameters().items) {
    for (const auto& leaf : reference) {
      if (leaf.name != item.name) {
        continue;
      }
      ASSERT_EQ(item.slice.grad().defined(), leaf.tensor.grad().defined())
          << "gradient of " << item.name;
      if (leaf.tensor.grad().defined()) {
        expect_close(
            item.slice.grad(), slicing.of(item.name, leaf.tensor.grad()),
            tolerance, "gradient of " + item.name);
      }
    }
  }
}

inline void expect_parameters(
    const std::vector<NamedLeaf>& reference,
    torch::nn::Module& module,
    FullyShardedDataParallel& fsdp,
    double tolerance) {
  const auto all = full_parameters(module, fsdp);
  for (const auto& leaf : reference) {
    expect_close(all[leaf.name], leaf.tensor.detach(), tolerance, leaf.name);
  }
}

template <typename Model>
ShardReport expect_rank_parity(
    const World& world,
    const std::function<Model()>& make,
    const Pass<Model>& pass,
    const RankParity& options = {}) {
  Model reference = make();
  Model model = make();
  const Mesh mesh(world, {.replicate = options.replicas});
  const Slicing slicing(*reference, mesh, options.shard);
  const auto leaves = unique_parameters(*reference);
  const auto step_reference = options.step(tensors_of(leaves));
  auto fsdp = fully_shard(*model, mesh, options.shard);
  const auto step_shards = options.step(fsdp.parameters());
  for (int step = 0; step < options.steps; ++step) {
    for (int micro = 0; micro < options.micro_batches; ++micro) {
      const int batch = step * options.micro_batches + micro;
      const auto expected = reference_backward<Model>(
          reference, leaves, pass, batch, world, options.shard);
      auto found = pass(model, batch, world.rank());
      found.backward();
      expect_close(
          found.detach(), expected, options.tolerance,
          "loss of batch " + std::to_string(batch));
    }
    expect_gradients(slicing, leaves, fsdp, options.tolerance);
    step_reference();
    step_shards();
    fsdp.publish();
  }
  expect_parameters(leaves, *model, fsdp, options.tolerance);
  const auto report = fsdp.report();
  fsdp.close();
  return report;
}

}  // namespace sherd::test
