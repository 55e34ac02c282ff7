// SPDX-License-Identifier: Apache-2.0
//
// Runs in which all replicas are lost, and the use of their checkpoints: real processes, a real
// folder, and a disk that fails as the test wants.
#include <algorithm>
#include <filesystem>
#include <string>
#include <variant>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ft/replica_checkpoints.h>
#include "base/check.h"
#include "ft/disk_cluster.h"
#include "support/scratch_folder.h"

namespace sherd::ft::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

namespace fs = std::filesystem;

// More steps than are made while a test looks and kills.
constexpr std::int64_t kEndless = std::int64_t{1} << 40;

History history_of(const std::vector<Record>& log) {
  History history;
  for (const auto& record : log) {
    // O2 and O3: it throws for records that cannot follow.
    append(history, record);
  }
  return history;
}

std::vector<RollbackRecord> rollbacks_in(const std::vector<Record>& log) {
  std::vector<RollbackRecord> rollbacks;
  for (const auto& record : log) {
    if (const auto* one = std::get_if<RollbackRecord>(&record)) {
      rollbacks.push_back(*one);
    }
  }
  return rollbacks;
}

class FaultsDisk : public ::testing::Test {
 protected:
  const sherd::testing::ScratchFolder scratch_;
};

struct LostRun {
  const char* id;
  int ranks = 1;
  bool coordinator_too = false;
  bool on_devices = false;
};

class FaultsDiskOf : public FaultsDisk,
                     public ::testing::WithParamInterface<LostRun> {};

// O1: the cluster compares by name what replicas hold and load.
TEST_P(FaultsDiskOf, F16AllAreKilledAndTheRunGoesOnFromTheDisk) {
  DiskCluster cluster(
      {.folder = scratch_.path() + "/run",
       .ranks = GetParam().ranks,
       .on_devices = GetParam().on_devices,
       .steps = kEndless});
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until(
      [&] { return cluster.made() >= 13 && cluster.saved(10); }));
  cluster.kill_all();
  cluster.steps = cluster.made() + 20;
  if (GetParam().coordinator_too) {
    cluster.kill_coordinator();
    cluster.start_coordinator();
  }
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_done());

  ASSERT_THAT(cluster.loaded(), SizeIs(3));
  EXPECT_THAT(cluster.loaded(), Each(cluster.loaded().front()));
  const auto log = cluster.log();
  const auto history = history_of(log);
  EXPECT_EQ(history.canonical->step, cluster.steps);
  const auto rollbacks = rollbacks_in(log);
  ASSERT_THAT(rollbacks, SizeIs(1));
  const auto back = rollbacks.front().canonical.step;
  EXPECT_GE(back, 10);
  EXPECT_EQ(back % 5, 0);
  EXPECT_THAT(cluster.loaded().front(), StartsWith(str("step ", back, " of ")));
  // The samples of the lost steps were given out again.
  EXPECT_THAT(history.consumed.ranges(), SizeIs(1));
  EXPECT_EQ(history.consumed.size(), cluster.steps * 3 * GetParam().ranks);
  EXPECT_TRUE(cluster.saved(cluster.steps));
}

INSTANTIATE_TEST_SUITE_P(
    Runs,
    FaultsDiskOf,
    ::testing::Values(
        LostRun{"one_rank"},
        LostRun{"two_ranks", 2},
        LostRun{"and_the_coordinator", 1, true},
        LostRun{"on_devices", 2, false, true}),
    [](const auto& tested) { return std::string(tested.param.id); });

TEST_F(FaultsDisk, CheckpointsAreSavedInTurnsAndOldOnesGo) {
  DiskCluster cluster(
      {.folder = scratch_.path() + "/run", .steps = 32, .keep = 2});
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_done());
  EXPECT_FALSE(cluster.saved(5));
  // The last step, no matter which replica's turn it is.
  EXPECT_TRUE(cluster.saved(32));
  EXPECT_EQ(verify_checkpoint(cluster.path_of(32)) > 0, true);
  EXPECT_EQ(
      checkpoint_content(cluster.path_of(32)).values.count(kReplicaState), 1U);
  EXPECT_EQ(newest_checkpoint(cluster.checkpoints), cluster.path_of(32));
  EXPECT_EQ(cluster.failures(), 0U);
}

// ---- disks that fail ----

struct Failing {
  const char* id;
  DiskFault fault = DiskFault::kNone;
};

class FaultsDiskFails : public FaultsDisk,
                        public ::testing::WithParamInterface<Failing> {};

// The replica that saves step 10 is hit; the others continue, and so does the one that comes back.
TEST_P(FaultsDiskFails, F51TrainingGoesOn) {
  DiskCluster cluster(
      {.folder = scratch_.path() + "/run",
       .fault = GetParam().fault,
       .fault_at = "/.saving-step-10",
       // If one is killed, another may save that step as well.
       .kills_max = 1});
  cluster.set_restarts(true);
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_done());
  const bool kills = GetParam().fault != DiskFault::kFull;
  int lives = 0;
  for (int replica = 0; replica < 3; ++replica) {
    lives += cluster.life_of(replica);
  }
  EXPECT_EQ(lives, kills ? 4 : 3);
  const auto log = cluster.log();
  EXPECT_EQ(history_of(log).canonical->step, 30);
  EXPECT_THAT(rollbacks_in(log), SizeIs(0));
  EXPECT_TRUE(cluster.saved(30));
  // The next replica has removed what was left.
  EXPECT_FALSE(fs::exists(cluster.checkpoints + "/.saving-step-10"));
  if (!kills) {
    EXPECT_THAT(
        cluster.said(),
        AllOf(
            HasSubstr("the checkpoint of step 10 of "),
            HasSubstr("failed, and training goes on")));
  }
}

TEST_P(FaultsDiskFails, F51ThePreviousOneLoads) {
  DiskCluster cluster(
      {.folder = scratch_.path() + "/run",
       .fault = GetParam().fault,
       .fault_at = "/.saving-step-"});
  // The first checkpoint is made before the disk fails.
  DiskCluster good({.folder = scratch_.path() + "/other", .steps = 5});
  good.checkpoints = cluster.checkpoints;
  good.coordinator.log = cluster.coordinator.log;
  good.kill_coordinator();
  cluster.kill_coordinator();
  good.start_coordinator();
  good.start_all();
  ASSERT_TRUE(good.run_until_done());
  good.kill_coordinator();
  cluster.start_coordinator();
  cluster.steps = kEndless;
  cluster.start_all();
  const bool kills = GetParam().fault != DiskFault::kFull;
  ASSERT_TRUE(cluster.run_until([&] {
    return cluster.made() >= 16 || (kills && cluster.ranks_alive() < 3);
  }));
  cluster.kill_all();
  cluster.steps = 30;
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_done());
  ASSERT_THAT(cluster.loaded(), SizeIs(6));
  EXPECT_THAT(cluster.loaded(), Each(StartsWith("step 5 of ")));
  EXPECT_EQ(history_of(cluster.log()).canonical->step, 30);
  EXPECT_TRUE(cluster.saved(30));
}

INSTANTIATE_TEST_SUITE_P(
    Disks,
    FaultsDiskFails,
    ::testing::Values(
        Failing{"full", DiskFault::kFull},
        Failing{"kill_in_write", DiskFault::kKillInWrite},
        Failing{"kill_before_rename", DiskFault::kKillBeforeRename}),
    [](const auto& tested) { return std::string(tested.param.id); });

TEST_F(FaultsDisk, F51ATornFileIsRefusedAndThePreviousOneLoads) {
  DiskCluster cluster({.folder = scratch_.path() + "/run", .steps = kEndless});
  cluster.start_all();
  ASSERT_TRUE(
      cluster.run_until([&] { return cluster.saved(5) && cluster.saved(10); }));
  cluster.kill_all();
  cluster.steps = cluster.made() + 20;
  for (std::int64_t step = 10; step <= cluster.made(); step += 5) {
    for (const auto& file : cluster.saved(step)
             ? fs::directory_iterator(cluster.path_of(step))
             : fs::directory_iterator()) {
      if (file.path().extension() == ".safetensors") {
        fs::resize_file(file, fs::file_size(file) - 7);
      }
    }
  }
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_done());
  EXPECT_THAT(cluster.said(), HasSubstr("not loaded: "));
  ASSERT_THAT(cluster.loaded(), SizeIs(3));
  EXPECT_THAT(cluster.loaded(), Each(StartsWith("step 5 of ")));
  EXPECT_EQ(history_of(cluster.log()).canonical->step, cluster.steps);
}

// No write to the disk returns until all steps are made.
TEST_F(FaultsDisk, F52AStorageThatHangsHoldsUpNoStep) {
  DiskCluster cluster(
      {.folder = scratch_.path() + "/run",
       .steps = 40,
       .save_every = 2,
       .fault = DiskFault::kHang,
       .fault_at = "/.saving-step-"});
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_made(40));
  EXPECT_FALSE(newest_checkpoint(cluster.checkpoints));
  cluster.release();
  ASSERT_TRUE(cluster.run_until_done());
  EXPECT_THAT(cluster.said(), HasSubstr("is still being written"));
  EXPECT_EQ(cluster.failures(), 0U);
}

// A run that ends without its last checkpoint must not look like one that has it.
TEST_F(FaultsDisk, F51ThatTheLastOneFailsIsAnError) {
  DiskCluster cluster(
      {.folder = scratch_.path() + "/run",
       .replicas = 1,
       .steps = 10,
       .fault = DiskFault::kFull,
       .fault_at = "/.saving-step-10"});
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_failed(0));
  EXPECT_THAT(cluster.failure_of(0), HasSubstr("/.saving-step-10"));
  // The first attempt was that of its turn.
  EXPECT_THAT(
      cluster.said(),
      AllOf(
          HasSubstr("the checkpoint of step 10 of "),
          HasSubstr("failed, and training goes on")));
  EXPECT_TRUE(cluster.saved(5));
  EXPECT_FALSE(cluster.saved(10));
}

// Both have failed to save what they have made, so what the second one hears is no success.
TEST_F(FaultsDisk, F51ALastOneThatNoReplicaHasSavedIsAnError) {
  DiskCluster cluster(
      {.folder = scratch_.path() + "/run",
       .replicas = 2,
       .steps = 10,
       .fault = DiskFault::kFull,
       .fault_at = "/.saving-step-"});
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_failed(0));
  ASSERT_TRUE(cluster.run_until_failed(1));
  cluster.start(0);
  ASSERT_TRUE(cluster.run_until([&] { return cluster.is_done(0); }));
  EXPECT_FALSE(cluster.saved(0));  // It has taken no step.
  cluster.start(1);
  ASSERT_TRUE(cluster.run_until([&] {
    return cluster.failure_of(1).find("each replica that had it has failed") !=
        std::string::npos;
  }));
  EXPECT_FALSE(cluster.is_done(1));
}

// ---- checkpoints of other runs ----

// Makes a checkpoint of step 5 with another log.
void run_elsewhere(DiskCluster& other) {
  other.start_all();
  ASSERT_TRUE(other.run_until_done());
  ASSERT_TRUE(other.saved(other.made()));
}

TEST_F(FaultsDisk, OneOfAnotherRunIsRefusedAndDisturbsNobody) {
  DiskCluster other(
      {.folder = scratch_.path() + "/other", .replicas = 1, .steps = 5});
  run_elsewhere(other);
  DiskCluster cluster({.folder = scratch_.path() + "/run"});
  cluster.checkpoints_of[2] = other.checkpoints;
  cluster.kill_coordinator();
  cluster.coordinator.replicas_start = 2;
  cluster.start_coordinator();
  cluster.start(0);
  cluster.start(1);
  ASSERT_TRUE(cluster.run_until_made(3));
  cluster.start(2);
  ASSERT_TRUE(cluster.run_until(
      [&] { return cluster.is_done(0) && cluster.is_done(1); }));
  ASSERT_TRUE(cluster.run_until_failed(2));
  EXPECT_THAT(
      cluster.failure_of(2),
      HasSubstr("expected a checkpoint of this run, or none, found step 5"));
  EXPECT_EQ(cluster.failures(), 1U);
  const auto log = cluster.log();
  EXPECT_EQ(history_of(log).canonical->step, 30);
  EXPECT_THAT(rollbacks_in(log), SizeIs(0));
}

TEST_F(FaultsDisk, OneOfAnotherModelIsRefusedWithItsName) {
  DiskCluster other(
      {.folder = scratch_.path() + "/other", .replicas = 1, .steps = 5});
  run_elsewhere(other);
  DiskCluster cluster({.folder = scratch_.path() + "/run", .replicas = 1});
  cluster.checkpoints = other.checkpoints;
  cluster.width = 32;
  cluster.start(0);
  ASSERT_TRUE(cluster.run_until_failed(0));
  EXPECT_THAT(
      cluster.failure_of(0),
      AllOf(
          HasSubstr("that can be loaded, found none: "), HasSubstr("step-5"),
          HasSubstr("expected shape")));
}

TEST_F(FaultsDisk, ANewLogNeedsToBeToldToGoOnFromTheDisk) {
  DiskCluster cluster({.folder = scratch_.path() + "/run", .steps = 12});
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until(
      [&] { return cluster.made() >= 6 && cluster.saved(5); }));
  cluster.kill_all();
  cluster.kill_coordinator();
  cluster.coordinator.log += ".new";
  cluster.start_coordinator();
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_failed(0));
  EXPECT_THAT(
      cluster.failure_of(0),
      AllOf(
          HasSubstr("found an empty one"),
          HasSubstr("--recover-from-replicas")));
  cluster.kill_all();
  cluster.kill_coordinator();
  cluster.coordinator.recover_from_replicas = true;
  cluster.start_coordinator();
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_done());
  const auto history = history_of(cluster.log());
  EXPECT_EQ(history.canonical->step, 12);
  EXPECT_GE(history.past.front().state.step, 5);
  // No sample is taken twice, although nobody knows the first steps any more.
  EXPECT_EQ(history.consumed.size(), 12 * 3);
}

}  // namespace
}  // namespace sherd::ft::test
