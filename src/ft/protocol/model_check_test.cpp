// SPDX-License-Identifier: Apache-2.0
//
// The protocol holds in every order of events, and the check would notice if it
// did not.
#include "ft/protocol/model_testing.h"

#include <cstdio>
#include <gmock/gmock.h>

namespace sherd::ft {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t kSeed = 1;

void expect_holds(const ModelResult& result) {
  EXPECT_THAT(result.violation, IsEmpty());
  EXPECT_TRUE(result.complete) << result.states << " states";
  EXPECT_GT(result.commits_seen, 0);
  EXPECT_EQ(result.stuck, 0) << result.stuck_at;
  EXPECT_GT(result.asked, 0);
  std::printf(
      "%lld states, %lld commits, %lld rollbacks, %lld asked whether they go "
      "on\n",
      static_cast<long long>(result.states),
      static_cast<long long>(result.commits_seen),
      static_cast<long long>(result.rollbacks_seen),
      static_cast<long long>(result.asked));
}

void expect_safe(const ModelOptions& options) {
  expect_holds(check_model(options));
}

ModelResult walks_of(const ModelOptions& options, std::int64_t walks) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  return walk_model(options, kSeed, walks);
}

void expect_found(const ModelResult& result, const char* rule) {
  EXPECT_THAT(result.violation, HasSubstr(rule));
  std::printf(
      "found after %lld states: %s\n", static_cast<long long>(result.states),
      result.violation.substr(0, 200).c_str());
}

// ---- everything that can happen, within narrow bounds ----

TEST(ProtocolModel, ThreeReplicasWhoseOrdersOvertakeEachOther) {
  expect_safe({.steps = 1, .epochs = 1, .progress_every = 100});
}

TEST(ProtocolModel, TwoReplicasOfWhichOneDiesAndComesBack) {
  expect_safe(
      {.replicas = 2,
       .replicas_min = 1,
       .steps = 2,
       .epochs = 2,
       .crashes = 1,
       .latest_messages = true,
       .progress_every = 500});
}

TEST(ProtocolModel, ACoordinatorThatIsKilledBetweenAnyTwoDecisions) {
  expect_safe(
      {.replicas = 2,
       .steps = 1,
       .epochs = 2,
       .coordinator_crashes = 1,
       .latest_messages = true,
       .progress_every = 100});
}

TEST(ProtocolModel, ACoordinatorThatGoesOnBesideItsSuccessor) {
  expect_safe(
      {.replicas = 2,
       .steps = 1,
       .epochs = 1,
       .coordinator_pauses = 1,
       .latest_messages = true,
       .progress_every = 100});
}

TEST(ProtocolModel, ConnectionsThatEndAndTimeouts) {
  expect_safe(
      {.replicas = 2,
       .replicas_min = 1,
       .steps = 1,
       .epochs = 1,
       .false_losses = 1,
       .timeouts = 1,
       .latest_messages = true,
       .progress_every = 100});
}

TEST(ProtocolModel, ReplicasThatAreFoundToHangAndMoveAgain) {
  expect_safe(
      {.replicas = 2,
       .replicas_min = 1,
       .steps = 1,
       .epochs = 2,
       .hangs = 1,
       .latest_messages = true,
       .progress_every = 100});
}

TEST(ProtocolModel, ReportsThatAreHeardTogether) {
  expect_safe(
      {.replicas = 2,
       .replicas_min = 1,
       .steps = 1,
       .epochs = 1,
       .crashes = 1,
       .false_losses = 1,
       .latest_messages = true,
       .reports_together = true,
       .progress_every = 500});
}

TEST(ProtocolModel, SumsThatAreCopiedWhileTheyAreUndecided) {
  expect_safe(
      {.replicas = 2,
       .replicas_min = 1,
       .steps = 1,
       .prepares = true,
       .epochs = 2,
       .crashes = 1,
       .latest_messages = true,
       .progress_every = 500});
}

TEST(ProtocolModel, GradientsThatAreBadOnSomeReplicasOrAll) {
  expect_safe(
      {.replicas = 2,
       .replicas_min = 1,
       .steps = 1,
       .epochs = 3,
       .bad_gradients = 2,
       .latest_messages = true,
       .progress_every = 100});
}

// One replica is dead and the other holds nothing: the dead one has to come back.
TEST(ProtocolModel, WhoHoldsNothingIsNotEnough) {
  expect_safe(
      {.replicas = 2,
       .replicas_min = 1,
       .steps = 1,
       .epochs = 1,
       .crashes = 1,
       .damages = 1,
       .latest_messages = true,
       .progress_every = 29});
}

TEST(ProtocolModel, AllHoldersDieAndTheStepIsRolledBack) {
  const auto result = check_model(
      {.replicas = 1,
       .replicas_min = 1,
       .steps = 2,
       .epochs = 3,
       .crashes = 1,
       .timeouts = 1,
       .latest_messages = true,
       .progress_every = 10});
  expect_holds(result);
  EXPECT_GT(result.rollbacks_seen, 0);
}

// ---- random paths within wide bounds ----

TEST(ProtocolModel, RandomWaysWithEveryFault) {
  const auto result = walks_of(
      {.replicas_min = 1,
       .steps = 6,
       .prepares = true,
       .epochs = 1000,
       .crashes = 5,
       .coordinator_crashes = 2,
       .coordinator_pauses = 1,
       .damages = 2,
       .bad_gradients = 2,
       .leaves = 1,
       .partitions = 4,
       .false_losses = 3,
       .hangs = 3,
       .timeouts = 6,
       .latest_messages = true,
       .reports_together = true},
      1500);
  expect_holds(result);
  EXPECT_GT(result.rollbacks_seen, 0);
}

TEST(ProtocolModel, RandomWaysWithOrdersLostRepeatedAndOvertaken) {
  expect_holds(walks_of(
      {.steps = 5,
       .epochs = 1000,
       .crashes = 4,
       .coordinator_crashes = 2,
       .partitions = 2,
       .lost_messages = 4,
       .repeated_messages = 4,
       .timeouts = 4,
       .reports_together = true},
      400));
}

// At most two of three pairs are cut, so one pair is left.
TEST(ProtocolModel, RandomWaysWithRingLinksThatAreDeadForGood) {
  expect_holds(walks_of(
      {.steps = 5,
       .epochs = 1000,
       .link_cuts = 2,
       .timeouts = 4,
       .latest_messages = true},
      400));
}

// Four members have another order, which is planned while they train.
TEST(ProtocolModel, RandomWaysWithLinksThatAreFoundSlow) {
  expect_holds(walks_of(
      {.replicas = 4,
       .steps = 6,
       .epochs = 1000,
       .crashes = 1,
       .coordinator_crashes = 1,
       .link_cuts = 1,
       .slow_links = 2,
       .timeouts = 4,
       .latest_messages = true},
      300));
}

TEST(ProtocolModel, RandomWaysToWhereNoTwoReplicasReachEachOther) {
  expect_holds(walks_of(
      {.replicas_min = 1,
       .steps = 5,
       .epochs = 1000,
       .crashes = 1,
       .partitions = 1,
       .link_cuts = 6,
       .timeouts = 4,
       .latest_messages = true},
      300));
}

TEST(ProtocolModel, ALogThatIsLostWhileReplicasLive) {
  expect_safe(
      {.replicas = 2,
       .steps = 1,
       .epochs = 2,
       .log_losses = 1,
       .latest_messages = true,
       .progress_every = 100});
}

TEST(ProtocolModel, RandomWaysWithLogsThatAreLost) {
  expect_holds(walks_of(
      {.replicas_min = 1,
       .steps = 5,
       .epochs = 1000,
       .crashes = 2,
       .coordinator_crashes = 1,
       .log_losses = 2,
       .partitions = 2,
       .false_losses = 1,
       .latest_messages = true,
       .reports_together = true},
      1000));
}

// A rolled-back state may be all that is left. The run then stops, since nobody knows what led
// there.
TEST(ProtocolModel, RandomWaysWithLogsThatAreLostAroundRollbacks) {
  const auto result = walks_of(
      {.replicas_min = 1,
       .steps = 6,
       .epochs = 1000,
       .crashes = 4,
       .coordinator_crashes = 2,
       .log_losses = 3,
       .partitions = 4,
       .false_losses = 2,
       .timeouts = 4,
       .latest_messages = true},
      500);
  EXPECT_THAT(result.violation, IsEmpty());
  EXPECT_TRUE(result.complete);
  EXPECT_GT(result.commits_seen, 0);
  EXPECT_GT(result.rollbacks_seen, 0);
}

ModelOptions two_whose_log_is_often_lost() {
  return {
      .replicas = 2,
      .replicas_min = 1,
      .steps = 8,
      .epochs = 1000,
      .crashes = 8,
      .log_losses = 4,
      .partitions = 2,
      .latest_messages = true};
}

// A replica that has fetched the last step may be the only one left.
TEST(ProtocolModel, RandomWaysOfTwoWhoseLogIsOftenLost) {
  const auto result = walks_of(two_whose_log_is_often_lost(), 1000);
  EXPECT_THAT(result.violation, IsEmpty());
  EXPECT_GT(result.commits_seen, 0);
}

// ---- rules that are wrong on purpose ----

TEST(ProtocolModelFinds, ALostLogThatIsMadeFromWhoeverAnswers) {
  expect_found(
      walks_of(
          {.steps = 5,
           .epochs = 1000,
           .log_losses = 2,
           .partitions = 3,
           .timeouts = 4,
           .latest_messages = true,
           .mutation = Mutation::kRecoverFromSome},
          20000),
      "S8: ");
}

TEST(ProtocolModelFinds, AReplicaThatHoldsWhatNoViewHasNamed) {
  auto options = two_whose_log_is_often_lost();
  options.mutation = Mutation::kHoldUnnamedStates;
  expect_found(walks_of(options, 20000), "S8: ");
}

TEST(ProtocolModelFinds, ACopyOfASumThatWasGivenUpAndIsApplied) {
  expect_found(
      walks_of(
          {.replicas_min = 1,
           .steps = 4,
           .prepares = true,
           .epochs = 1000,
           .crashes = 2,
           .partitions = 2,
           .timeouts = 4,
           .latest_messages = true,
           .mutation = Mutation::kApplyPreparedSums},
          20000),
      "S3: ");
}

TEST(ProtocolModelFinds, AReplicaThatAppliesWithoutACommit) {
  expect_found(
      check_model({.mutation = Mutation::kApplyWithoutCommit}),
      "S2: a replica holds step 1");
}

TEST(ProtocolModelFinds, ACoordinatorThatTellsBeforeItWrites) {
  expect_found(
      check_model(
          {.replicas = 2,
           .coordinator_crashes = 1,
           .latest_messages = true,
           .mutation = Mutation::kCommitBeforeTheLog}),
      "S2: a replica holds step 1");
}

TEST(ProtocolModelFinds, ALogThatTakesRecordsOfOldTerms) {
  expect_found(
      check_model(
          {.replicas = 2,
           .coordinator_pauses = 1,
           .latest_messages = true,
           .mutation = Mutation::kLogTakesOldTerms}),
      "[ft] log: expected");
}

TEST(ProtocolModelFinds, BadGradientsThatAreReduced) {
  expect_found(
      check_model(
          {.replicas = 2,
           .steps = 1,
           .epochs = 1,
           .bad_gradients = 1,
           .latest_messages = true,
           .mutation = Mutation::kBadGradientsCount}),
      "S7: bad gradients");
}

TEST(ProtocolModelFinds, ACoordinatorThatHasForgottenItsLog) {
  expect_found(
      walks_of(
          {.replicas = 2,
           .replicas_min = 1,
           .steps = 4,
           .epochs = 50,
           .crashes = 3,
           .coordinator_crashes = 3,
           .timeouts = 4,
           .latest_messages = true,
           .mutation = Mutation::kForgottenLog},
          10000),
      "S8: another branch");
}

TEST(ProtocolModelFinds, ThatAStepNumberIsNoIdentity) {
  expect_found(
      walks_of(
          {.steps = 5,
           .epochs = 1000,
           .crashes = 8,
           .partitions = 4,
           .timeouts = 8,
           .latest_messages = true,
           .mutation = Mutation::kStepIsIdentity},
          20000),
      "S3: members that reduced from different parameters");
}

// This explores millions of states and is run by `make soak`.
TEST(ProtocolModel, DISABLED_EveryOrderOfTwoReplicasAndTwoDeaths) {
  expect_safe(
      {.replicas = 2,
       .replicas_min = 1,
       .steps = 1,
       .epochs = 2,
       .crashes = 2,
       .timeouts = 1,
       .latest_messages = true,
       .states_max = 12'000'000,
       .progress_every = 5000});
}

TEST(ProtocolModel, DISABLED_EveryOrderOfThreeReplicasAndADeath) {
  expect_safe(
      {.replicas_min = 1,
       .steps = 1,
       .epochs = 1,
       .crashes = 1,
       .timeouts = 1,
       .latest_messages = true,
       .states_max = 12'000'000,
       .progress_every = 5000});
}

TEST(ProtocolModel, DISABLED_RandomWays) {
  for (std::uint64_t seed = 100; seed < 110; ++seed) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    expect_holds(walk_model(
        {.replicas = 4,
         .replicas_min = 1 + static_cast<int>(seed % 2),
         .steps = 8,
         .epochs = 5000,
         .crashes = 8,
         .coordinator_crashes = 3,
         .coordinator_pauses = 2,
         .damages = 2,
         .bad_gradients = 2,
         .leaves = 1,
         .partitions = 5,
         .false_losses = 4,
         .lost_messages = 4,
         .repeated_messages = 4,
         .timeouts = 8,
         .latest_messages = seed % 3 != 0,
         .reports_together = seed % 2 == 0},
        seed, 3000));
  }
}

}  // namespace
}  // namespace sherd::ft
