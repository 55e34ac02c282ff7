// SPDX-License-Identifier: Apache-2.0
//
// Ranks are killed while they save: the newest complete checkpoint is whole, and
// nothing is left behind by the next start.
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"

#include <csignal>
#include <filesystem>
#include <random>
#include <gmock/gmock.h>
#include <sherd/ckpt/checkpoint.h>
#include <torch/torch.h>
#include "base/rank_environment.h"

namespace sherd::test {
namespace {

using sherd::testing::ScratchFolder;

constexpr int kRanks = 2;
constexpr std::int64_t kElements = 300'000;  // Of each rank, of each tensor.

// Every element is the step.
struct Numbers {
  explicit Numbers(const World& world) {
    for (const char* name : {"a", "b"}) {
      tensors.push_back(torch::zeros({kElements}));
      state.add(
          "numbers",
          {.name = name,
           .shape = {kRanks, kElements},
           .begin = world.rank() * kElements,
           .elements = tensors.back(),
           .ranks = kRanks});
    }
  }
  std::vector<torch::Tensor> tensors;
  CheckpointState state;
};

void save_until_killed(World world, Rank& self, const std::string& folder) {
  Numbers numbers(world);
  CheckpointSaver saver(
      world, folder, {.asynchronous = world.rank() >= 0, .keep_last = 2});
  for (std::int64_t step = 1; step < 1000; ++step) {
    for (auto& tensor : numbers.tensors) {
      tensor.fill_(static_cast<double>(step));
    }
    saver.save(step, numbers.state);
    if (step == 2) {
      self.reach("saving");
    }
  }
}

void expect_whole(World world, const std::string& folder) {
  Numbers numbers(world);
  const CheckpointSaver saver(world, folder);
  const auto newest = saver.newest();
  ASSERT_TRUE(newest.has_value());
  const auto report = load_checkpoint(world, *newest, numbers.state);
  EXPECT_GE(report.step, 1);
  for (const auto& tensor : numbers.tensors) {
    EXPECT_TRUE(
        (tensor == static_cast<double>(report.step)).all().item<bool>());
  }
  if (world.rank() == 0) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const auto name = entry.path().filename().string();
      EXPECT_TRUE(name == ".lock" || name.starts_with("step-")) << name;
    }
  }
}

// SHERD_TEST_KILLS: how many points; `make soak` has 200.
int points() {
  return std::stoi(process_environment()("SHERD_TEST_KILLS").value_or("20"));
}

TEST(KilledSave, TheNewestCheckpointIsWholeAndNothingIsLeftBehind) {
  for (int seed = 0; seed < points(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(static_cast<unsigned>(seed));
    const std::chrono::microseconds later(random() % 60'000);
    const bool all = seed % 2 == 0;
    const int victim = static_cast<int>(random() % kRanks);
    const ScratchFolder scratch;
    const auto folder = scratch.path() + "/run";
    RankOptions options;
    options.close_world = false;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (all || rank == victim) {
        options.strikes.push_back(
            {.child = rank,
             .point = "saving",
             .signal = SIGKILL,
             .later =
                 rank == 0 || !all ? later : std::chrono::microseconds(0)});
      }
    }
    const auto killed = run_ranks(
        kRanks,
        [&](World world, Rank& self) {
          save_until_killed(world, self, folder);
        },
        options);
    // The other one may have noticed before it came to its own.
    EXPECT_TRUE(killed[0].signal == SIGKILL || killed[1].signal == SIGKILL);
    expect_all_ok(
        run_ranks(kRanks, [&](World world) { expect_whole(world, folder); }));
  }
}

}  // namespace
}  // namespace sherd::test
