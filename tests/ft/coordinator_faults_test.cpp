// SPDX-License-Identifier: Apache-2.0
//
// Coordinators that are killed around a decision, come back with another log, or are two at once.
// F26 is LogStoreKilled of ft_coordinator_test; F27 is LogStoreOnSmallDisks there and
// FaultsSmallDisk here.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <variant>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/cluster.h"
#include "support/delay.h"

namespace sherd::ft::test {
namespace {

using sherd::test::Direction;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// The time until it is back and replicas have found it, times five.
constexpr Duration kCoordinatorGap = milliseconds(5000);

// Before, during and after the write: whichever it is, all replicas see the same outcome and
// nothing is computed again.
TEST(FaultsCoordinator, F23F24KilledAroundTheWriteNoStepIsLost) {
  const auto seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::fflush(stdout);
  std::mt19937 random(seed);
  Cluster cluster({.steps = 90});
  constexpr int kKills = 10;
  int kills = 0;
  for (int i = 0; i < kKills; ++i) {
    const auto later = microseconds(random() % 2000);
    const auto step = 5 + 8 * i;
    const auto replica = static_cast<ReplicaId>(i % 3);
    const auto kill = [&, i, later] {
      if (i == kills) {
        ++kills;
        sherd::test::be_late(later);
        cluster.signal_coordinator(SIGKILL);
        cluster.start_coordinator();
      }
      return std::string();
    };
    cluster.at({.replica = replica, .point = "voted", .step = step}, kill);
    // At the latest when this replica was left out of the step.
    cluster.when_held(step, kill);
  }
  const auto outcome = cluster.run();
  // A replica that finds the next coordinator later than the others follows in that step.
  outcome.check(
      {.survivors = {0, 1, 2}, .gap_max = kCoordinatorGap, .unused_max = 3});
  EXPECT_EQ(outcome.history().term, 1U + kKills);
}

TEST(FaultsCoordinator, F25ACommitThatOneHasHeardIsThatOfAll) {
  Cluster cluster({.steps = 30, .links = true});
  cluster.at({.replica = 0, .point = "gradients", .step = 10}, [&] {
    for (const ReplicaId one : {1U, 2U}) {
      cluster.coordinator_link(one).set(Direction::kToClient, {.paused = true});
    }
    return std::string();
  });
  cluster.at({.replica = 0, .point = "committed", .step = 10}, [&] {
    cluster.signal_coordinator(SIGKILL);
    for (const ReplicaId one : {1U, 2U}) {
      cluster.coordinator_link(one).reset_connections();
    }
    cluster.heal();
    cluster.start_coordinator();
    return std::string();
  });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}, .gap_max = kCoordinatorGap});
  EXPECT_EQ(outcome.history().term, 2U);
  EXPECT_EQ(outcome.members_at(10), 3);
}

TEST(FaultsCoordinator, F28OneThatHasASuccessorDecidesNothingMore) {
  Cluster cluster({.steps = 120, .links = true});
  cluster.when_held(10, [&] {
    cluster.start_successor();
    cluster.after(milliseconds(300), [&] {
      cluster.wake_former(0);
      cluster.signal_all(0, SIGKILL);
      cluster.start(0);  // The coordinator has to record that.
    });
    cluster.after(milliseconds(600), [&] { cluster.forget_former(0); });
  });
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {1, 2},
       .gap_max = kCoordinatorGap,
       .says = {"the log belongs to term 2"}});
  EXPECT_EQ(outcome.history().term, 2U);
}

TEST(FaultsCoordinator, F29WithAnEmptyLogNothingIsCommittedOrLost) {
  Cluster cluster({.steps = 60});
  const auto log = cluster.log();
  cluster.when_held(10, [&] {
    cluster.signal_coordinator(SIGKILL);
    cluster.set_log(log + ".empty");
    cluster.start_coordinator();
    cluster.after(milliseconds(1500), [&] {
      cluster.signal_coordinator(SIGKILL);
      cluster.set_log(log);
      cluster.start_coordinator();
    });
  });
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 1, 2},
       .gap_max = kCoordinatorGap,
       .says = {"is of run"}});
  for (const auto& record : records_of(log + ".empty")) {
    EXPECT_FALSE(std::holds_alternative<EpochRecord>(record));
    EXPECT_FALSE(std::holds_alternative<CommitRecord>(record));
  }
}

// The files disappear while the coordinator runs, and it dies before it has noticed. Returns what
// they contained.
std::vector<Record> lose_log(Cluster& cluster) {
  cluster.signal_coordinator(SIGSTOP);
  auto records = records_of(cluster.log());
  for (const auto* suffix : {"", "-wal", "-shm"}) {
    std::filesystem::remove(cluster.log() + suffix);
  }
  cluster.signal_coordinator(SIGKILL);
  cluster.set_recovers();
  cluster.start_coordinator();
  return records;
}

// Joins both logs as if nothing had been lost: the run continues from its last commit.
std::vector<Record> joined(
    std::vector<Record> lost, const std::vector<Record>& recovered) {
  History history;
  for (const auto& record : lost) {
    append(history, record);
  }
  EXPECT_TRUE(std::holds_alternative<TermRecord>(recovered.front()));
  for (std::size_t i = 1; i < recovered.size(); ++i) {
    const auto& record = recovered[i];
    if (const auto* back = std::get_if<RecoveryRecord>(&record)) {
      // Either one step behind, which the next record then has, or where it was.
      EXPECT_TRUE(history.on_chain(back->canonical()));
      EXPECT_LE(history.canonical->step, back->canonical().step + 1);
      EXPECT_EQ(history.run, std::get<TermRecord>(lost.front()).run);
      continue;
    }
    if (const auto* commit = std::get_if<CommitRecord>(&record);
        commit != nullptr && commit->commit.result == history.canonical) {
      continue;
    }
    if (const auto* life = std::get_if<IncarnationRecord>(&record);
        life != nullptr &&
        history.lives[life->replica].current == life->incarnation) {
      continue;
    }
    append(history, record);
    lost.push_back(record);
  }
  return lost;
}

TEST(FaultsCoordinator, F29ALogThatIsLostWithItsDiskIsMadeFromAllReplicas) {
  Cluster cluster({.steps = 60});
  std::vector<Record> lost;
  cluster.at({.replica = 0, .point = "forward", .step = 10}, [&] {
    lost = lose_log(cluster);
    return std::string();
  });
  auto outcome = cluster.run();
  outcome.log = joined(std::move(lost), outcome.log);
  outcome.check(
      {.survivors = {0, 1, 2},
       .gap_max = kCoordinatorGap,
       .says = {"the log: was empty: run"}});
  EXPECT_EQ(outcome.members_at(10), 3);
  EXPECT_EQ(outcome.rollbacks(), 0);
}

// All have voted for a step that the lost log may have.
TEST(FaultsCoordinator, F29AStepThatWasVotedForIsInTheNewLog) {
  Cluster cluster({.steps = 60});
  std::vector<Record> lost;
  cluster.at({.replica = 2, .point = "voted", .step = 10}, [&] {
    lost = lose_log(cluster);
    return std::string();
  });
  auto outcome = cluster.run();
  outcome.log = joined(std::move(lost), outcome.log);
  outcome.check({.survivors = {0, 1, 2}, .gap_max = kCoordinatorGap});
  EXPECT_EQ(outcome.members_at(10), 3);
}

TEST(FaultsCoordinator, F29ALostLogIsNeverMadeFromSomeOfTheReplicas) {
  Cluster cluster({.steps = 60, .links = true});
  std::vector<Record> lost;
  cluster.at({.replica = 0, .point = "forward", .step = 10}, [&] {
    cluster.coordinator_link(2).set_both({.paused = true});
    lost = lose_log(cluster);
    cluster.coordinator_link(2).reset_connections();
    cluster.after(milliseconds(2500), [&] { cluster.heal(); });
    return std::string();
  });
  auto outcome = cluster.run();
  outcome.log = joined(std::move(lost), outcome.log);
  outcome.check({.survivors = {0, 1, 2}, .says = {"still to come: replica 2"}});
  EXPECT_GT(outcome.longest_gap({0, 1, 2}), milliseconds(2000));
  EXPECT_EQ(outcome.members_at(10), 3);
}

// The running coordinator notices that the file is gone, reports it, and keeps what it had.
TEST(FaultsCoordinator, F29ALogThatIsRemovedIsNoticedAndCanBePutBack) {
  Cluster cluster({.steps = 60});
  const auto log = cluster.log();
  std::function<void()> look = [&] {
    if (cluster.coordinator_lives()) {
      cluster.after(milliseconds(10), look);
      return;
    }
    cluster.signal_coordinator(SIGKILL);  // Only for waitpid().
    std::filesystem::rename(log + ".rescued", log);
    cluster.start_coordinator();
  };
  cluster.when_held(10, [&] {
    for (const auto* suffix : {"", "-wal", "-shm"}) {
      std::filesystem::remove(log + suffix);
    }
    look();
  });
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 1, 2},
       .gap_max = kCoordinatorGap,
       .says = {"it was deleted while the coordinator used it"}});
  EXPECT_EQ(outcome.rollbacks(), 0);
}

TEST(FaultsCoordinator, F68ACommitThatIsLateToOneIsWaitedFor) {
  Cluster cluster({.steps = 30, .links = true});
  cluster.at({.replica = 1, .point = "reducing", .step = 10}, [&] {
    cluster.coordinator_link(1).set(
        Direction::kToClient, {.delay = milliseconds(1500)});
    cluster.after(milliseconds(300), [&] { cluster.heal(); });
    return std::string();
  });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}, .gap_max = milliseconds(3300)});
  EXPECT_GE(outcome.longest_gap({0, 1, 2}), milliseconds(1000));
  EXPECT_EQ(outcome.epochs(), 1);
}

TEST(FaultsCoordinator, F69ItAndBothNeighboursAreBackAndThereIsOneBranch) {
  ClusterOptions options;
  options.steps = 60;
  options.restarts = true;
  Cluster cluster(options);
  cluster.at({.replica = 1, .point = "reducing", .step = 10}, [&] {
    cluster.signal_coordinator(SIGKILL);
    cluster.signal_all(0, SIGKILL);
    cluster.signal_all(2, SIGKILL);
    cluster.after(milliseconds(200), [&] { cluster.start_coordinator(); });
    return std::string();
  });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {1}, .gap_max = kCoordinatorGap});
  EXPECT_EQ(outcome.rollbacks(), 0);
}

}  // namespace
}  // namespace sherd::ft::test
