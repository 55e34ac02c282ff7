// SPDX-License-Identifier: Apache-2.0
//
// A small GPT that trains in any layout on the same global batches, so that one
// layout can go on where another has stopped.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ddp/replicate.h>
#include <sherd/optim/adamw.h>
#include <sherd/shard/fully_shard.h>
#include "support/small_decoders.h"

namespace sherd::test {

struct JobLayout {
  std::string name;
  int ranks = 1;
  int replicate = 1;
  Strategy strategy = Strategy::kFullShard;
  OptimizerAxes axes = OptimizerAxes::kShard;
  bool ddp = false;
  std::string units = "h.*";
};

inline std::ostream& operator<<(std::ostream& out, const JobLayout& layout) {
  return out << layout.name;
}

inline std::vector<JobLayout> job_layouts() {
  return {
      {.name = "one"},
      {.name = "two", .ranks = 2},
      {.name = "three", .ranks = 3, .units = "*"},
      {.name = "four", .ranks = 4},
      {.name = "hybrid", .ranks = 4, .replicate = 2},
      {.name = "both_axes",
       .ranks = 4,
       .replicate = 2,
       .axes = OptimizerAxes::kBoth},
      {.name = "grad_op",
       .ranks = 2,
       .strategy = Strategy::kShardGradOp,
       .units = "*"},
      {.name = "no_shard", .ranks = 2, .strategy = Strategy::kNoShard},
      {.name = "ddp", .ranks = 3, .ddp = true},
  };
}

class CheckpointJob {
 public:
  CheckpointJob(const World& world, const JobLayout& layout, int first_values)
      : world_(world), model_(small_gpt({.tied = true})) {
    {
      const torch::NoGradGuard no_grad;
      torch::manual_seed(static_cast<std::uint64_t>(first_values));
      for (auto& parameter : model_->parameters()) {
        parameter.normal_(0.0, 0.1);
      }
    }
    if (layout.ddp) {
      ddp_.emplace(replicate(*model_, world));
    } else {
      FullyShardOptions options;
      options.units = units::by_name(layout.units);
      options.strategy = layout.strategy;
      options.optimizer_axes = layout.axes;
      fsdp_.emplace(fully_shard(
          *model_, Mesh(world, {.replicate = layout.replicate}), options));
    }
    adamw_.emplace(parameters(), AdamWOptions{.learning_rate = 1e-2});
    state_.add(parameters());
    state_.add_buffers(*model_);
    state_.add("adamw", *adamw_, parameters());
  }

  NamedParameters parameters() const {
    return fsdp_ ? fsdp_->named_parameters() : ddp_->named_parameters();
  }
  CheckpointState& state() { return state_; }
  models::Gpt& model() { return model_; }

  // Of the global batch of 12 rows, before the step.
  double step(int number) {
    torch::manual_seed(1000 + static_cast<std::uint64_t>(number));
    const auto all = torch::randint(0, 11, {12, 9}, torch::kLong);
    const auto rows = 12 / world_.size();
    const auto ids = all.narrow(0, world_.rank() * rows, rows);
    const auto loss = model_->loss(
        ids.slice(1, 0, 8).contiguous(), ids.slice(1, 1, 9).contiguous());
    loss.backward();
    adamw_->step();
    adamw_->zero_grad();
    double sum = 0;
    for (const auto& one : world_.all_gather({loss.item<double>()})) {
      sum += one[0];
    }
    return sum / world_.size();
  }

 private:
  const World& world_;
  models::Gpt model_;
  std::optional<FullyShardedDataParallel> fsdp_;  // Or:
  std::optional<DistributedDataParallel> ddp_;
  std::optional<AdamW> adamw_;
  CheckpointState state_;
};

}  // namespace sherd::test
