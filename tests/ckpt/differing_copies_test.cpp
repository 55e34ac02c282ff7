// SPDX-License-Identifier: Apache-2.0
//
// Replicas whose models or optimizers differ: what a checkpoint has of them is that of one rank, and
// decisions about a step are those of all.
#include "ddp/replica_parity.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"
#include "support/small_models.h"

#include <map>
#include <gmock/gmock.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/adamw.h>

namespace sherd::test {
namespace {

using sherd::testing::ScratchFolder;

constexpr int kRanks = 3;

CheckpointState state_of(const DistributedDataParallel& ddp, AdamW& adamw) {
  CheckpointState state;
  state.add(ddp.named_parameters());
  state.add("optimizer", adamw, ddp.named_parameters());
  return state;
}

// Rank 0 gets what a checkpoint would have, and compares it with what `rank` has.
void expect_saved_from(
    int rank,
    const World& world,
    CheckpointState& state,
    const std::map<std::string, torch::Tensor>& mine) {
  const auto full = gather_full_state(world, state);
  for (const auto& [name, tensor] : mine) {
    const auto values = tensor.to(torch::kDouble).flatten().contiguous();
    const std::vector<double> numbers(
        values.const_data_ptr<double>(),
        values.const_data_ptr<double>() + values.numel());
    const auto expected = torch::tensor(
        world.all_gather(numbers)[static_cast<std::size_t>(rank)],
        torch::kDouble);
    if (world.rank() == 0) {
      const auto& saved = full.at("optimizer").contains(name)
          ? full.at("optimizer").at(name)
          : full.at("model").at(name);
      EXPECT_TRUE(torch::equal(saved.to(torch::kDouble).flatten(), expected))
          << name;
    }
  }
}

std::map<std::string, torch::Tensor> tensors_of_rank(
    torch::nn::Module& model, AdamW& adamw) {
  std::map<std::string, torch::Tensor> all;
  for (const auto& item : model.named_parameters()) {
    all[item.key()] = item.value().detach();
  }
  for (const auto& each : adamw.tensors({})) {
    all[each.key + "." + each.parameter] = each.tensor;
  }
  return all;
}

// Ranks without inputs make no steps: 1, 3 and 2 steps.
TEST(DifferingCopies, OptimizersAfterAJoinAreThoseOfTheRankWithAllSteps) {
  expect_all_ok(run_ranks(kRanks, [](World world) {
    IntegerMlp model;
    auto ddp = replicate(*model, world);
    AdamW adamw(ddp.named_parameters(), {.learning_rate = 0.125});
    auto join = ddp.join();
    for (int batch = 0; batch < (world.rank() == 1 ? 3 : 1 + world.rank() / 2);
         ++batch) {
      integer_loss(model, batch, world.rank()).backward();
      adamw.step();
      adamw.zero_grad();
    }
    join.finish();
    auto state = state_of(ddp, adamw);
    expect_saved_from(1, world, state, tensors_of_rank(*model, adamw));
    // A rank that saves alone saves its own.
    const auto own = gather_full_state(World::single(), state);
    EXPECT_EQ(own.at("model").size(), model->parameters().size());
  }));
}

TEST(DifferingCopies, ModelsThatDriftApartAreThoseOfRank0) {
  expect_all_ok(run_ranks(kRanks, [](World world) {
    IntegerMlp model;
    ReplicateOptions options;
    options.hook = compress(
        torch::kHalf, post_local_sgd({.start_step = 0, .group_size = 1}));
    auto ddp = replicate(*model, world, options);
    AdamW adamw(ddp.named_parameters(), {.learning_rate = 0.125});
    for (int batch = 0; batch < 2; ++batch) {
      integer_loss(model, batch, world.rank()).backward();
      adamw.step();
      adamw.zero_grad();
    }
    auto state = state_of(ddp, adamw);
    expect_saved_from(0, world, state, tensors_of_rank(*model, adamw));
  }));
}

void expect_those_of_the_first_replica(
    const Mesh& mesh, const FullyShardOptions& options) {
  IntegerMlp model;
  auto fsdp = fully_shard(*model, mesh, options);
  AdamW adamw(fsdp.named_parameters(), {.learning_rate = 0.125});
  integer_loss(model, 0, mesh.world().rank()).backward();
  adamw.step();
  CheckpointState state;
  state.add(fsdp.named_parameters());
  state.add("optimizer", adamw, fsdp.named_parameters());
  const auto full = gather_full_state(mesh.world(), state);
  const auto scope = fsdp.summon_full_parameters({.read_only = true});
  double sum = 0;
  for (const auto& item : model->named_parameters()) {
    sum += scope.tensor(item.key()).sum().item<double>();
    if (mesh.world().rank() == 0) {
      EXPECT_TRUE(torch::equal(
          full.at("model").at(item.key()), scope.tensor(item.key())));
      EXPECT_TRUE(full.at("optimizer").contains("exp_avg." + item.key()));
    }
  }
  const auto sums = mesh.world().all_gather({sum});
  EXPECT_NE(sums.front()[0], sums.back()[0]) << "they have not drifted apart";
}

TEST(DifferingCopies, ShardedModelsThatDriftApartAreThoseOfTheFirstReplica) {
  expect_all_ok(run_ranks(4, [](World world) {
    FullyShardOptions options;
    options.hook = post_local_sgd({.start_step = 0, .group_size = 1});
    expect_those_of_the_first_replica(Mesh(world, {.replicate = 2}), options);
    options.hook = post_local_sgd({.start_step = 0, .group_size = 1});
    options.strategy = Strategy::kNoShard;
    expect_those_of_the_first_replica(Mesh(world), options);
  }));
}

TEST(DifferingCopies, AStepIsSkippedOnAllRanksOrOnNone) {
  expect_all_ok(run_ranks(kRanks, [](World world) {
    IntegerMlp model;
    auto ddp = replicate(*model, world);
    const auto largest = [&] {
      const auto number =
          torch::full({1}, static_cast<double>(world.rank()), torch::kDouble);
      ddp.named_parameters().all_reduce_max(number);
      return number.item<double>();
    };
    EXPECT_EQ(largest(), world.rank())
        << "gradients are equal, nothing is sent";
    ddp.set_hook(post_local_sgd({.start_step = 0, .group_size = 1}));
    EXPECT_EQ(largest(), kRanks - 1);
  }));
}

// A hook with state of several dtypes, under a name like that of a module.
class Remembers final : public CommHook {
 public:
  std::string name() const override { return "remembers"; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    group.all_reduce_mean(bucket.gradients);
  }
  State state() const override { return kept; }
  void load(const State& state) override { kept = state; }
  void reset() override { kept.clear(); }

  State kept;
};

TEST(DifferingCopies, AHookThatIsSetKeepsItsState) {
  expect_all_ok(run_ranks(2, [](World world) {
    IntegerMlp model;
    auto ddp = replicate(*model, world);
    const auto hook = std::make_shared<Remembers>();
    hook->load({{"momentum", torch::ones({2})}});
    ddp.set_hook(hook);
    EXPECT_EQ(hook->kept.size(), 1U);
    ddp.set_world(world);
    EXPECT_EQ(hook->kept.size(), 0U);
  }));
}

TEST(DifferingCopies, StatesOfHooksKeepDtypesAndMayLackTensors) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(2, [&](World world) {
    const Mesh replicas(world, {.replicate = 2});
    CommHook::State mine = {
        {"momentum/h.0", torch::full({2}, 1 << 25, torch::kInt) + world.rank()},
        {"seen", torch::full({3}, world.rank() + 0.1, torch::kDouble)}};
    if (world.rank() == 1) {
      mine.pop_back();
    }
    CheckpointState state;
    add_hook_state(state, mine, replicas);
    CheckpointSaver(world, scratch.path()).save(1, state);
    auto room = room_for_hook_state(
        checkpoint_content(scratch.path() + "/step-1"), replicas);
    CheckpointState loaded;
    add_hook_state(loaded, room, replicas);
    load_checkpoint(world, scratch.path() + "/step-1", loaded);
    const std::map<std::string, torch::Tensor> found(room.begin(), room.end());
    EXPECT_TRUE(torch::equal(found.at("momentum/h.0"), mine[0].second));
    EXPECT_TRUE(torch::equal(
        found.at("seen"),
        world.rank() == 0 ? mine[1].second
                          : torch::zeros({3}, torch::kDouble)));
  }));
}

}  // namespace
}  // namespace sherd::test
