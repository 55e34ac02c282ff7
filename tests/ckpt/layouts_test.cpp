// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of tensors whatever their strides: what one engine has saved, any
// other goes on from, over tensors with other strides.
#include "support/error_of.h"
#include "support/odd_layouts.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"

#include <optional>
#include <gmock/gmock.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ddp/replicate.h>
#include "ckpt/archive.h"

namespace sherd::test {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::HasSubstr;

// Sums of thousands that cancel out are exact enough in fp64.
OddLayouts odd_layouts() { return OddLayouts(Gaps::kWithout, torch::kDouble); }

struct LayoutEngine {
  std::string name;
  std::optional<Strategy> strategy;  // None: replicas.
};

const LayoutEngine kEngines[] = {
    {"full_shard", Strategy::kFullShard},
    {"shard_grad_op", Strategy::kShardGradOp},
    {"no_shard", Strategy::kNoShard},
    {"replicate", std::nullopt}};

torch::optim::AdamWOptions adamw_options() {
  return torch::optim::AdamWOptions(1e-2);
}

class DistributedModule {
 public:
  DistributedModule(
      const World& world,
      torch::nn::Module& model,
      const LayoutEngine& engine) {
    if (engine.strategy) {
      FullyShardOptions options;
      options.strategy = *engine.strategy;
      fsdp_.emplace(fully_shard(model, world, options));
    } else {
      ddp_.emplace(replicate(model, world));
    }
  }

  NamedParameters parameters() const {
    return fsdp_ ? fsdp_->named_parameters() : ddp_->named_parameters();
  }

 private:
  std::optional<FullyShardedDataParallel> fsdp_;  // Or:
  std::optional<DistributedDataParallel> ddp_;
};

class LayoutJob {
 public:
  LayoutJob(const World& world, OddLayouts model, const LayoutEngine& engine)
      : world_(world),
        model_(std::move(model)),
        distributed_(world, *model_, engine) {
    std::vector<torch::Tensor> leaves;
    const auto parameters = distributed_.parameters();
    for (const auto& item : parameters.items) {
      leaves.push_back(item.slice);
    }
    adamw_.emplace(leaves, adamw_options());
    state_.add(parameters);
    state_.add_buffers(*model_);
    state_.add("adamw", *adamw_, parameters);
  }

  torch::Tensor step(int batch) {
    const auto loss = odd_loss(model_, batch, world_.rank());
    loss.backward();
    adamw_->step();
    if (const auto publish = distributed_.parameters().publish) {
      publish();
    }
    adamw_->zero_grad();
    return loss.detach();
  }

  // On rank 0; nothing elsewhere.
  sherd::FullState full_state() { return gather_full_state(world_, state_); }

  CheckpointState& state() { return state_; }

 private:
  const World& world_;
  OddLayouts model_;
  DistributedModule distributed_;
  std::optional<torch::optim::AdamW> adamw_;
  CheckpointState state_;
};

// The same in one process.
class LayoutReference {
 public:
  explicit LayoutReference(const World& world)
      : world_(world), adamw_(model_->parameters(), adamw_options()) {}

  torch::Tensor step(int batch) {
    const auto loss = reference_backward<OddLayouts>(
        model_, leaves_, odd_loss, batch, world_,
        {.strategy = Strategy::kNoShard});
    adamw_.step();
    adamw_.zero_grad();
    return loss;
  }

  sherd::FullState full_state() {
    sherd::FullState all;
    for (const auto& leaf : leaves_) {
      auto& state = static_cast<torch::optim::AdamWParamState&>(
          *adamw_.state().at(leaf.tensor.unsafeGetTensorImpl()));
      all["model"][leaf.name] = leaf.tensor.detach();
      all["adamw"]["exp_avg." + leaf.name] = state.exp_avg();
      all["adamw"]["exp_avg_sq." + leaf.name] = state.exp_avg_sq();
    }
    for (const auto& item : model_->named_buffers()) {
      all["model"][item.key()] = item.value();
    }
    return all;
  }

 private:
  const World& world_;
  OddLayouts model_ = odd_layouts();
  std::vector<NamedLeaf> leaves_ = unique_parameters(*model_);
  torch::optim::AdamW adamw_;
};

void expect_state(
    const sherd::FullState& found,
    const sherd::FullState& expected,
    const std::string& what) {
  for (const auto& [section, tensors] : expected) {
    ASSERT_TRUE(found.contains(section)) << what << ": " << section;
    const auto& there = found.at(section);
    for (const auto& [name, tensor] : tensors) {
      ASSERT_TRUE(there.contains(name)) << what << ": " << name;
      expect_close(there.at(name), tensor, 1e-9, what + ": " + name);
    }
  }
}

OddLayouts zeros(OddLayouts model) {
  const torch::NoGradGuard no_grad;
  for (const auto& tensors : {model->parameters(), model->buffers()}) {
    for (auto tensor : tensors) {
      tensor.zero_();
    }
  }
  return model;
}

class CheckpointLayouts : public ::testing::TestWithParam<int> {};

TEST_P(CheckpointLayouts, AnyEngineGoesOnFromAnyOverOtherStrides) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const std::size_t count = std::size(kEngines);
    for (std::size_t e = 0; e < count; ++e) {
      const auto& engine = kEngines[e];
      const auto& next = kEngines[(e + 1) % count];
      const auto what = engine.name + " to " + next.name;
      LayoutReference reference(world);
      LayoutJob job(world, odd_layouts(), engine);
      for (int batch = 0; batch < 2; ++batch) {
        expect_close(job.step(batch), reference.step(batch), 1e-9, what);
      }
      const auto expected = reference.full_state();
      const auto found = job.full_state();
      const auto folder = scratch.path() + "/" + engine.name;
      CheckpointSaver saver(world, folder, {.asynchronous = e % 2 == 1});
      saver.save(2, job.state());
      saver.wait();
      if (world.rank() == 0) {
        expect_state(found, expected, what + ", gathered");
        const auto merged = merge_checkpoint(
            folder + "/step-2", folder + "-merged",
            {.section = "model", .archives = true});
        const auto archive = ckpt::read_archive(merged.at(0));
        EXPECT_EQ(archive.tensors.size(), 8U) << "parameters and buffers";
        for (const auto& [name, tensor] : archive.tensors) {
          expect_close(tensor, found.at("model").at(name), 0.0, what);
        }
      }
      // Into the same strides, and into others.
      for (const bool plain : {false, true}) {
        auto empty = zeros(odd_layouts());
        LayoutJob other(world, plain ? contiguous(empty) : empty, next);
        load_checkpoint(world, folder + "/step-2", other.state());
        expect_state(
            other.full_state(),
            world.rank() == 0 ? expected : sherd::FullState(),
            what + ", loaded");
        if (plain) {
          expect_close(other.step(2), reference.step(2), 1e-9, what);
        }
      }
    }
  }));
}

// With a parameter that is frozen and one that has no elements.
struct ThreeParametersImpl : torch::nn::Module {
  explicit ThreeParametersImpl(int seed) {
    torch::manual_seed(seed);
    frozen = register_parameter("frozen", torch::randn({5, 3}), false);
    trained = register_parameter("trained", torch::randn({3}));
    empty = register_parameter("empty", torch::ones({0, 4}));
  }
  torch::Tensor frozen, trained, empty;
};
TORCH_MODULE(ThreeParameters);

TEST_P(CheckpointLayouts, FrozenAndEmptyParametersAreStateInAnyEngine) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto& shards = kEngines[0];
    const auto& replicas = kEngines[3];
    const ThreeParameters first(0);
    int step = 0;
    for (const auto& engine : {shards, replicas, replicas, shards}) {
      ThreeParameters model(step);
      const DistributedModule distributed(world, *model, engine);
      CheckpointState state;
      const auto parameters = distributed.parameters();
      std::vector<torch::Tensor> slices;
      for (const auto& item : parameters.items) {
        slices.push_back(item.slice);
      }
      torch::optim::AdamW adamw(
          engine.strategy ? slices : model->parameters(), adamw_options());
      state.add(parameters);
      state.add_buffers(*model);
      state.add("adamw", adamw, parameters);
      if (step > 0) {
        load_newest_checkpoint(world, scratch.path(), state);
      }
      const auto full = gather_full_state(world, state);
      CheckpointSaver(world, scratch.path()).save(++step, state);
      if (world.rank() > 0) {
        continue;
      }
      ThreeParameters merged(step);
      torch::load(
          merged,
          merge_checkpoint(
              scratch.path() + "/step-" + std::to_string(step),
              scratch.path() + "/merged-" + std::to_string(step),
              {.archives = true})
              .at(0));
      EXPECT_EQ(full.at("model").size(), 3U) << engine.name;
      for (const auto& item : first->named_parameters()) {
        const auto what = engine.name + " " + item.key();
        const auto expected = item.value().detach();
        expect_close(full.at("model").at(item.key()), expected, 0.0, what);
        expect_close(
            merged->named_parameters()[item.key()].detach(), expected, 0.0,
            what + ", merged");
      }
    }
  }));
}

// Gaps are no part of a tensor: they are not saved, and stay as they are.
TEST(CheckpointGaps, StayWhatTheyAre) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(1, [&](World world) {
    const auto rows = torch::arange(12, torch::kFloat).view({3, 4});
    const auto halves = rows.slice(1, 0, 4, 2);
    const auto values = halves.clone();
    CheckpointState state;
    state.add("model", {.name = "w", .shape = {3, 2}, .elements = halves});
    CheckpointSaver saver(world, scratch.path());
    saver.save(1, state);
    rows.fill_(7.0);
    load_checkpoint(world, scratch.path() + "/step-1", state);
    expect_close(halves, values, 0.0, "what was loaded");
    EXPECT_TRUE(rows.slice(1, 1, 4, 2).eq(7.0).all().item<bool>());
    const auto one = torch::ones({1}).expand({3});
    EXPECT_THAT(
        error_of([&] {
          state.add("model", {.name = "b", .shape = {3}, .elements = one});
        }),
        HasSubstr("b: expected elements with memory of their own"));
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    CheckpointLayouts,
    ::testing::Values(1, 2, 3),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
