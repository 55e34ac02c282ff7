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

void expect_safe(const ModelOptions& options) {
  const auto result = check_model(options);
  EXPECT_THAT(result.violation, IsEmpty());
  EXPECT_TRUE(result.complete) << result.states << " states";
  EXPECT_GT(result.commits_seen, 0);
  EXPECT_EQ(result.stuck, 0) << result.stuck_at;
  EXPECT_GT(result.asked, 0);
  std::printf(
      "%lld states, %lld transitions, %lld asked whether they go on\n",
      static_cast<long long>(result.states),
      static_cast<long long>(result.transitions),
      static_cast<long long>(result.asked));
}

void expect_found(const ModelOptions& options, const char* rule) {
  const auto result = check_model(options);
  EXPECT_THAT(result.violation, HasSubstr(rule));
  std::printf(
      "found after %lld states: %s\n", static_cast<long long>(result.states),
      result.violation.c_str());
}

TEST(ProtocolModel, ThreeReplicasWhoseMessagesOvertakeEachOther) {
  expect_safe({.steps = 1, .epochs = 1, .progress_every = 100});
}

TEST(ProtocolModel, ThreeReplicasOfWhichOneDies) {
  expect_safe(
      {.steps = 1,
       .epochs = 2,
       .crashes = 1,
       .latest_messages = true,
       .progress_every = 500});
}

TEST(ProtocolModel, TwoReplicasOfWhichOneDiesAndComesBack) {
  expect_safe(
      {.replicas = 2,
       .replicas_min = 1,
       .steps = 2,
       .epochs = 4,
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

TEST(ProtocolModel, ConnectionsThatEndAndTimeouts) {
  expect_safe(
      {.replicas = 2,
       .replicas_min = 1,
       .steps = 1,
       .epochs = 3,
       .false_losses = 1,
       .timeouts = 1,
       .latest_messages = true,
       .progress_every = 500});
}

TEST(ProtocolModel, LostAndRepeatedMessages) {
  expect_safe(
      {.replicas = 2,
       .steps = 1,
       .epochs = 1,
       .lost_messages = 1,
       .repeated_messages = 1,
       .progress_every = 500});
}

// ---- rules that are wrong on purpose ----

TEST(ProtocolModel, FindsAReplicaThatAppliesWithoutACommit) {
  expect_found(
      {.mutation = Mutation::kApplyWithoutCommit},
      "S2: a replica holds step 1");
}

TEST(ProtocolModel, FindsACoordinatorThatTellsBeforeItWrites) {
  expect_found(
      {.replicas = 2,
       .coordinator_crashes = 1,
       .latest_messages = true,
       .mutation = Mutation::kCommitBeforeTheLog},
      "S2: a replica holds step 1");
}

}  // namespace
}  // namespace sherd::ft
