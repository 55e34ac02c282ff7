// SPDX-License-Identifier: Apache-2.0
//
// Replicas of two ranks each that shard their model: a rank that is killed while
// its sibling is inside a collective of the replica takes its replica with it at
// once, and the others, whose rings it was in, train on (F66).
#include <chrono>
#include <csignal>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/ft/replica_session.h>
#include <sherd/optim/adamw.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include "base/clock.h"
#include "base/hash.h"
#include "support/coordinator_process.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"
#include "support/small_models.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;

constexpr int kReplicas = 3;
constexpr int kRanks = 2;
constexpr std::size_t kLayers = 4;
constexpr std::int64_t kSteps = 40;
constexpr std::int64_t kStruck = 10;

struct ShardKill {
  int replica;
  int rank;
  const char* point;
};

class ShardedReplica {
 public:
  ShardedReplica(
      const World& world,
      int replica,
      const std::string& coordinator,
      Rank& self)
      : self_(self),
        model_(kLayers, 6),
        fsdp_(fully_shard(*model_, world, shard_options())),
        adamw_(fsdp_.named_parameters(), {.learning_rate = 1e-3}),
        session_(
            world,
            fsdp_.named_parameters(),
            state(),
            [this](std::int64_t step) { update(step); },
            session_options(replica, coordinator)) {}

  void train() {
    while (const auto plan = session_.begin_step()) {
      if (plan->step > kSteps) {
        break;
      }
      if (!plan->samples.empty()) {
        compute(*plan, plan->samples.front().begin);
      }
      (void)session_.finish_step();
    }
    session_.close();
    // Without the others of the job: a step after which nobody is lost.
    EXPECT_EQ(session_.step(), kSteps);
    // Below dead_after: the end of a connection is what is noticed.
    EXPECT_LT(seconds(longest_), 8.0) << "between two steps";
    self_.report(std::to_string(hash()));
  }

 private:
  static FullyShardOptions shard_options() {
    FullyShardOptions options;
    options.budget_bytes = 512;  // A layer to a unit.
    return options;
  }
  CheckpointState state() {
    CheckpointState all;
    all.add(fsdp_.named_parameters());
    all.add("adamw", adamw_, fsdp_.named_parameters());
    return all;
  }
  static ft::SessionOptions session_options(
      int replica, const std::string& coordinator) {
    ft::SessionOptions options;
    options.coordinator = coordinator;
    options.replica = replica;
    options.replicas = kReplicas;
    return options;
  }

  // Says where it is, in the one step that faults are for.
  void compute(const ft::TrainingStep& plan, std::int64_t sample) {
    const auto reach = [this, step = plan.step](const std::string& point) {
      if (step == kStruck) {
        self_.reach(point);
      }
    };
    auto x = integer_rows(static_cast<int>(sample), 0, 6);
    for (std::size_t i = 0; i < kLayers; ++i) {
      const auto layer = "layer " + std::to_string(i);
      reach("forward of " + layer);
      x = model_->layer(i).forward(x).clamp(-2, 2);
      x.register_hook([reach, layer](const torch::Tensor& gradient) {
        reach("backward of " + layer);
        return gradient;
      });
    }
    model_->head(x).sum().backward();
  }

  void update(std::int64_t step) {
    const Instant now = clock_.now();
    longest_ = step > 1 ? std::max(longest_, now - updated_) : Duration(0);
    updated_ = now;
    adamw_.step();
  }

  std::uint64_t hash() const {
    Hash64 hash;
    for (const auto& item : fsdp_.named_parameters().items) {
      hash.add(std::string_view(
          static_cast<const char*>(item.slice.const_data_ptr()),
          item.slice.nbytes()));
    }
    return hash.value();
  }

  Rank& self_;
  const SteadyClock clock_;
  Instant updated_{0};
  Duration longest_{0};
  Chain model_;
  FullyShardedDataParallel fsdp_;
  AdamW adamw_;
  ft::ReplicaSession session_;
};

class KilledShard : public ::testing::TestWithParam<ShardKill> {};

TEST_P(KilledShard, F66TakesItsReplicaWithItAndNoOther) {
  const auto given = GetParam();
  const testing::ScratchFolder folder;
  ft::CoordinateOptions coordinating;
  coordinating.replicas_start = kReplicas;
  coordinating.samples_per_replica = kRanks;
  coordinating.dead_after =
      std::chrono::seconds(10);  // Whoever dies is closed.
  const CoordinatorProcess coordinator(coordinating);
  ASSERT_FALSE(coordinator.address().empty());
  RankOptions options;
  options.strikes = {
      {.child = given.replica * kRanks + given.rank,
       .point = given.point,
       .signal = SIGKILL}};
  const auto report = run_processes(
      kReplicas * kRanks,
      [&](int index, Rank& self) {
        const int replica = index / kRanks;
        const auto store = c10::make_intrusive<c10d::FileStore>(
            folder.path() + "/store" + std::to_string(replica), kRanks);
        const auto world = World::from_store(
            store, index % kRanks, kRanks, test_world_options());
        ShardedReplica(world, replica, coordinator.address(), self).train();
      },
      options);
  std::vector<std::string> hashes[kRanks];
  for (int index = 0; index < kReplicas * kRanks; ++index) {
    const auto& end = report[index];
    if (index / kRanks != given.replica) {
      EXPECT_EQ(end.exit_code, 0)
          << "process " << index << ", signal " << end.signal << ":\n"
          << end.output;
      hashes[index % kRanks].push_back(end.result);
    } else if (index % kRanks != given.rank) {
      EXPECT_EQ(end.exit_code, 3) << end.output;
      EXPECT_LT(report.after_strike(index), 8s) << end.output;
    }
  }
  for (const auto& of_rank : hashes) {
    EXPECT_EQ(of_rank.front(), of_rank.back());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gathers,
    KilledShard,
    ::testing::Values(
        ShardKill{1, 1, "forward of layer 2"},
        ShardKill{0, 0, "forward of layer 1"},
        ShardKill{2, 0, "backward of layer 1"},
        ShardKill{1, 1, "backward of layer 3"}),
    [](const ::testing::TestParamInfo<ShardKill>& tested) {
      std::string name = "Rank" + std::to_string(tested.param.rank) +
          "OfReplica" + std::to_string(tested.param.replica);
      for (const char* c = tested.param.point; *c != '\0'; ++c) {
        name += *c == ' ' ? '_' : *c;
      }
      return name;
    });

}  // namespace
}  // namespace sherd::test
