// SPDX-License-Identifier: Apache-2.0
//
// Silent bit errors in a sum, in parameters and in gradients. Most are detected, and by the
// intended detector; one kind is not.
#include <chrono>
#include <csignal>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "ft/cluster.h"
#include "ft/protocol/samples.h"

namespace sherd::ft::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// From this step on, replicas that hold the same state have the same bits.
void expect_agreement(const Outcome& outcome, std::int64_t from) {
  std::map<std::pair<int, StateId>, std::uint64_t> hashes;
  for (const auto& life : outcome.lives) {
    for (const auto& event : life.trace) {
      if (event.kind == TraceEvent::Kind::kHolds && event.state.step >= from) {
        const auto known =
            hashes.emplace(std::make_pair(life.rank, event.state), event.hash)
                .first;
        EXPECT_EQ(known->second, event.hash)
            << "replica " << life.replica << " at " << text_of(event.state);
      }
    }
  }
}

const CommitRecord& commit_of(const Outcome& outcome, std::int64_t step) {
  for (const auto& record : outcome.log) {
    const auto* commit = std::get_if<CommitRecord>(&record);
    if (commit != nullptr && commit->commit.result.step == step) {
      return *commit;
    }
  }
  throw Error("[test] expected a commit of the step");
}

// ---- T1: digests of sums ----

class DetectorSum : public ::testing::TestWithParam<int> {};

TEST_P(DetectorSum, F57AFlipInASumIsFoundAndTheStepRepeated) {
  const int ranks = GetParam();
  Cluster cluster({.ranks = ranks, .steps = 30});
  cluster.order_at(
      {.replica = 1, .rank = ranks - 1, .point = "sum", .step = 10},
      "flip sum");
  const auto outcome = cluster.run();
  // The bits are those of a run without faults, with all three replicas, and there is no other
  // cost.
  outcome.check(
      {.survivors = {0, 1, 2},
       .gap_max = kGap,
       .says = {"replica 1: replica 1 has another sum of gradients than"}});
  EXPECT_EQ(outcome.epochs(), 2);
  EXPECT_EQ(outcome.members_at(10), 3);
}

INSTANTIATE_TEST_SUITE_P(Ranks, DetectorSum, ::testing::Values(1, 2));

TEST(Detector, F57OfTwoNobodyIsBlamedAndTheStepIsRepeated) {
  Cluster cluster({.replicas = 2, .steps = 30});
  cluster.order_at({.replica = 1, .point = "sum", .step = 10}, "flip sum");
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 1},
       .gap_max = kGap,
       .says = {"a replica: replica", "has another sum of gradients than"}});
  EXPECT_EQ(outcome.epochs(), 2);
  EXPECT_EQ(outcome.members_at(10), 2);
}

// ---- T2: digests of states ----

struct Flip {
  std::int64_t step;  // The step after which it happens.
  int ranks;
};

class DetectorState : public ::testing::TestWithParam<Flip> {};

TEST_P(DetectorState, F58AFlipInParametersIsFoundInFiveStepsAndReplaced) {
  constexpr std::int64_t kEvery = 5;
  const auto flip = GetParam();
  const auto found = (flip.step + kEvery - 1) / kEvery * kEvery;
  Cluster cluster({.ranks = flip.ranks, .digest_every = kEvery});
  cluster.order_at(
      {.replica = 1,
       .rank = flip.ranks - 1,
       .point = "updated",
       .step = flip.step},
      "flip parameter");
  // What it computes from the damaged state is useless.
  cluster.end_behind({.replica = 1, .life = 1, .above = found + 1});
  const auto outcome = cluster.run();
  // What it has reduced from wrong bits until then is in all replicas' sums.
  const std::vector<ReplicaId> wrong_bits = found == flip.step
      ? std::vector<ReplicaId>{1}
      : std::vector<ReplicaId>{0, 1, 2};
  outcome.check(
      {.survivors = {0, 2},
       .gap_max = kGap,
       .wrong_bits = wrong_bits,
       .says = {"replica 1: its bits at step " + std::to_string(found)}});
  expect_agreement(outcome, found + 1);
  EXPECT_EQ(outcome.rollbacks(), 0);
  EXPECT_EQ(outcome.members_at(found), 3);
  EXPECT_GE(outcome.epochs(), 2);
  // It continues in the same incarnation, with a copy.
  const auto lives = outcome.lives_of(1);
  ASSERT_EQ(lives.size(), static_cast<std::size_t>(flip.ranks));
  EXPECT_TRUE(lives.front()->done) << lives.front()->failure;
  EXPECT_EQ(outcome.members_at(outcome.steps), 3);
}

INSTANTIATE_TEST_SUITE_P(
    Flips,
    DetectorState,
    ::testing::Values(Flip{10, 1}, Flip{11, 1}, Flip{10, 2}));

TEST(Detector, F58OfTwoThatDifferNobodyTrainsUntilOneIsEnded) {
  Cluster cluster({.replicas = 2, .restarts = true, .digest_every = 5});
  // A replica that an operator ended comes back with the bits of the other one.
  cluster.at({.replica = 1, .point = "updated", .step = 10}, [&] {
    cluster.after(std::chrono::seconds(1), [&] {
      EXPECT_EQ(cluster.last_held(), 10);
      cluster.signal_all(1, SIGKILL);
    });
    return std::string("flip parameter");
  });
  cluster.end_behind({.replica = 1});
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0},
       .wrong_bits = {1},
       .says = {"replicas 0, 1 hold different bits at step 10"}});
  expect_agreement(outcome, 11);
  EXPECT_EQ(outcome.members_at(outcome.steps), 2);
}

TEST(Detector, StatesThatAreEqualCostNoEpoch) {
  Cluster cluster({.ranks = 2, .steps = 30, .digest_every = 1});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}});
  EXPECT_EQ(outcome.epochs(), 1);
}

// ---- T3: gradients before they are reduced ----

struct BadGradientCase {
  const char* name;
  const char* order;
  const char* says;
  int ranks;
};

class DetectorGradient : public ::testing::TestWithParam<BadGradientCase> {};

TEST_P(DetectorGradient, F59ABadOneIsLeftOutOfTheStepAndTheLogSaysSo) {
  const auto bad = GetParam();
  Cluster cluster({.ranks = bad.ranks, .steps = 36});
  cluster.order_at(
      {.replica = 1, .rank = bad.ranks - 1, .point = "gradients", .step = 15},
      bad.order);
  const auto outcome = cluster.run();
  // The replay leaves them out, too; the others compute nothing again.
  outcome.check(
      {.survivors = {0, 1, 2},
       .gap_max = kGap,
       .unused_max = bad.ranks,
       .says = {"replica 1: rank", bad.says}});
  const auto& record = commit_of(outcome, 15);
  ASSERT_EQ(record.participants.size(), 3U);
  EXPECT_THAT(record.participants[1].samples, IsEmpty());
  EXPECT_THAT(
      record.participants[1].left_out, ElementsAre(SampleRange{172, 176}));
  EXPECT_EQ(record.commit.samples, 8);
  EXPECT_EQ(outcome.epochs(), 2);
  // From the next step on it counts again, and nothing is trained twice.
  EXPECT_EQ(commit_of(outcome, 16).commit.samples, 12);
  EXPECT_EQ(outcome.history().consumed.size(), 36 * 12);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    DetectorGradient,
    ::testing::Values(
        BadGradientCase{"Nan", "nan gradient", "infinite or not a number", 1},
        BadGradientCase{"Spike", "spike gradient", "their norm is", 1},
        BadGradientCase{
            "NanOfOneOfTwoRanks", "nan gradient", "not a number", 2}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(Detector, F59WhereAllAreBadOtherSamplesAreTrained) {
  Cluster cluster({.replicas = 2, .steps = 30});
  for (const ReplicaId one : {0U, 1U}) {
    cluster.order_at(
        {.replica = one, .point = "gradients", .step = 10}, "nan gradient");
  }
  const auto outcome = cluster.run();
  outcome.check({.gap_max = kGap});
  const auto& record = commit_of(outcome, 10);
  std::int64_t left_out = 0;
  for (const auto& one : record.participants) {
    left_out += count_of(one.left_out);
  }
  EXPECT_EQ(left_out, 8);
  EXPECT_GE(record.commit.samples, 4);
}

TEST(Detector, F59ThePolicyMayStopTheRun) {
  Cluster cluster(
      {.replicas = 2,
       .steps = 30,
       .bad_gradients_stop = true,
       .limit = std::chrono::seconds(3)});
  cluster.order_at(
      {.replica = 1, .point = "gradients", .step = 10}, "nan gradient");
  const auto outcome = cluster.run();
  EXPECT_FALSE(outcome.in_time);
  EXPECT_EQ(outcome.history().canonical->step, 9);
  EXPECT_THAT(
      outcome.coordinator,
      HasSubstr("the run: replica 1 has gradients of no use for step 10"));
}

// ---- what nothing detects ----

TEST(Detector, F60APlausibleFlipInAGradientIsMissedByAllAlike) {
  Cluster cluster({.steps = 30, .digest_every = 5});
  cluster.order_at(
      {.replica = 1, .point = "gradients", .step = 10}, "flip gradient");
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}, .wrong_bits = {0, 1, 2}});
  EXPECT_EQ(outcome.epochs(), 1);
  // All replicas have the same bits, but not the right ones.
  expect_agreement(outcome, 0);
  for (const auto& event : outcome.lives.front().trace) {
    if (event.kind == TraceEvent::Kind::kHolds) {
      const bool right = outcome.replayed(event.state, 0) == event.hash;
      EXPECT_EQ(right, event.state.step < 10) << text_of(event.state);
    }
  }
}

}  // namespace
}  // namespace sherd::ft::test
