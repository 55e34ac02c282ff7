// SPDX-License-Identifier: Apache-2.0
//
// A small GPT that trains in any layout on the same global batches, so that one
// layout can go on where another has stopped.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ddp/replicate.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/adamw.h>
#include "support/budgets.h"
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
  // From the least budget, 0, to one with room for all, 1; over messages, as
  // nothing is gathered where ranks share memory.
  std::optional<double> budget = std::nullopt;
};

inline std::ostream& operator<<(std::ostream& out, const JobLayout& layout) {
  return out << layout.name;
}

inline std::vector<JobLayout> job_layouts() {
  return {
      {.name = "one"},
      {.name = "two", .ranks = 2},
      {.name = "three", .ranks = 3},
      {.name = "four", .ranks = 4, .units = "*"},
      {.name = "hybrid", .ranks = 4, .replicate = 2},
      {.name = "both_axes",
       .ranks = 4,
       .replicate = 2,
       .axes = OptimizerAxes::kBoth},
      {.name = "grad_op", .ranks = 2, .strategy = Strategy::kShardGradOp},
      {.name = "no_shard", .ranks = 2, .strategy = Strategy::kNoShard},
      {.name = "ddp", .ranks = 3, .ddp = true},
      {.name = "two_least_budget", .ranks = 2, .budget = 0.0},
      {.name = "three_half_budget", .ranks = 3, .budget = 0.5},
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
      fsdp_.emplace(fully_shard(
          *model_, Mesh(world, {.replicate = layout.replicate}),
          options_of(layout)));
      if (layout.budget) {
        EXPECT_EQ(
            fsdp_->report().budget_bytes, *options_of(layout).budget_bytes);
      }
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

  // The loss of this rank's rows of a global batch of 12, before the step.
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
    return loss.item<double>();
  }

 private:
  FullyShardOptions options_of(const JobLayout& layout) const {
    FullyShardOptions options;
    options.units = units::by_name(layout.units);
    options.strategy = layout.strategy;
    options.optimizer_axes = layout.axes;
    if (layout.budget) {
      options.exchange = ExchangeKind::kCollective;
      const auto [floor, total] =
          budgets_of(*model_, options, layout.ranks / layout.replicate);
      options.budget_bytes =
          floor +
          static_cast<std::int64_t>(
              *layout.budget * static_cast<double>(total - floor));
    }
    return options;
  }

  const World& world_;
  models::Gpt model_;
  std::optional<FullyShardedDataParallel> fsdp_;  // Or:
  std::optional<DistributedDataParallel> ddp_;
  std::optional<AdamW> adamw_;
  CheckpointState state_;
};

}  // namespace sherd::test
