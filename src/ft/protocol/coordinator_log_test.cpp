// SPDX-License-Identifier: Apache-2.0
//
// What the coordinator decides about its log: in a new term, when all holders of the last step are
// gone, when replicas come with checkpoints, and when the run has ended.
#include "ft/protocol/coordinator_script_testing.h"

#include <gmock/gmock.h>

namespace sherd::ft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

History fold(const std::vector<Record>& log) {
  History history;
  for (const auto& record : log) {
    append(history, record);
  }
  return history;
}

TEST(CoordinatorLog, ANewTermGoesOnFromTheLog) {
  CoordinatorScript first(options_of(1, 2));
  first.begin({0, 1});
  first.vote(0);
  first.vote(1);
  const auto history = fold(first.log());
  EXPECT_EQ(history, first.coordinator().history());
  CoordinatorScript second(options_of(1, 2), history);
  // One replica has applied the step, the other has not heard of it.
  second.report(0).held = history.canonical;
  second.report(1).vote =
      Vote{history.commit()->attempt, history.commit()->base, 5};
  second.say(0);
  second.say(1);
  EXPECT_EQ(second.view(1).recent, history.recent(8));
  second.wait(kSettle);
  EXPECT_EQ(second.view(0).epoch, (Epoch{1, 1}));  // It waits for the other.
  second.apply({1});
  EXPECT_EQ(second.view(0).epoch, (Epoch{2, 2}));
  EXPECT_EQ(second.view(0).canonical, *history.canonical);
  // These are the samples that they have gradients of.
  EXPECT_THAT(
      second.view(1).members[1].samples, ElementsAre(SampleRange{24, 32}));
}

TEST(CoordinatorLog, OtherOptionsThanThoseOfTheLogAreRefusedAsSuch) {
  CoordinatorScript first(options_of(1, 1));
  first.begin({0});
  CoordinatorScript second(options_of(1, 1), fold(first.log()));
  second.report(0).config = 10;
  second.say(0);
  EXPECT_THAT(
      second.view(0).fenced,
      AllOf(
          HasSubstr("expected the configuration 9 of the run in the log, found "
                    "10"),
          HasSubstr("--recover-from-replicas")));
  EXPECT_TRUE(is_final_refusal(second.view(0).fenced));
}

TEST(CoordinatorLog, ANewTermWaitsAMomentForTheLastMembers) {
  CoordinatorScript first(options_of(1, 2));
  first.begin({0, 1});
  CoordinatorScript second(options_of(1, 2), fold(first.log()));
  second.say(0);
  second.wait(kJoin / 2);
  EXPECT_EQ(second.view(0).stage, EpochStage::kClosed);
  second.say(1);
  EXPECT_THAT(second.members(0), ElementsAre(0, 1));
  CoordinatorScript third(options_of(1, 2), fold(first.log()));
  third.say(0);
  third.wait(kJoin);
  EXPECT_THAT(third.members(0), ElementsAre(0));
}

TEST(CoordinatorLog, ANewTermKnowsWhichLivesAreOver) {
  CoordinatorScript first(options_of(1, 2));
  first.begin({0, 1});
  const auto old = first.report(1);
  first.report(1).incarnation = 777;
  first.say(1);
  CoordinatorScript second(options_of(1, 2), fold(first.log()));
  second.report(1) = old;
  second.say(1);
  EXPECT_THAT(second.view(1).fenced, HasSubstr("replaced by a newer one"));
}

TEST(CoordinatorLog, ALogThatLostRecordsCommitsNothing) {
  CoordinatorScript first(options_of(1, 2));
  first.begin({0, 1});
  const auto before = fold(first.log());
  first.vote(0);
  first.vote(1);
  CoordinatorScript second(options_of(1, 2), before);
  second.report(0).run = before.run;
  second.report(0).held = first.view(0).canonical;
  second.report(1).run = before.run;
  second.say(1);
  second.say(0);
  second.wait(kHold * 2);
  EXPECT_THAT(
      second.coordinator().complaint(),
      HasSubstr("which the log does not know"));
  EXPECT_EQ(second.coordinator().history().epoch, before.epoch);
}

// Its process was started after the copy of the log was made that is now in use.
TEST(CoordinatorLog, WhoKnowsMoreThanAnOldCopyOfTheLogIsNotFenced) {
  CoordinatorScript first(options_of(1, 2));
  first.begin({0, 1});
  const auto before = fold(first.log());
  first.vote(0);
  first.vote(1);
  CoordinatorScript second(options_of(1, 2), before);
  second.report(0).run = before.run;
  second.report(0).incarnation += 1000;
  second.report(0).held = first.view(0).canonical;
  second.say(0);
  second.wait(kHold * 2);
  EXPECT_EQ(second.view(0).fenced, "");
  EXPECT_THAT(
      second.coordinator().complaint(),
      HasSubstr("which the log does not know"));
}

// The holders of step 1 are lost, and replica 2 holds the state before.
CoordinatorScript without_holders() {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.vote(0);
  script.vote(1);
  script.apply({0, 1});
  script.lose(0);
  script.lose(1);
  script.report(2).held = kFirst;
  script.say(2);
  return script;
}

TEST(CoordinatorLog, RollsBackWhenAllHoldersAreGoneForLong) {
  auto script = without_holders();
  script.wait(kHold - kSettle);
  EXPECT_EQ(script.coordinator().history().canonical->step, 1);
  EXPECT_TRUE(script.coordinator().next_tick());
  script.wait(kSettle);
  EXPECT_EQ(script.coordinator().history().canonical, kFirst);
  EXPECT_THAT(script.members(2), ElementsAre(2));
  EXPECT_THAT(
      script.view(2).members[0].samples, ElementsAre(SampleRange{0, 8}));
  script.say(0);  // It held the lost state, which is now another branch.
  EXPECT_THAT(script.members(2), ElementsAre(2));
}

TEST(CoordinatorLog, AHeartbeatThatComesBeforeATickInTimeDoesNotCancelIt) {
  auto script = without_holders();
  script.pass(kHold);
  script.say(2);  // It says nothing new, so no rule is applied.
  EXPECT_EQ(script.coordinator().history().canonical->step, 1);
  ASSERT_TRUE(script.coordinator().next_tick());
  script.pass(kSettle);
  EXPECT_LE(*script.coordinator().next_tick(), script.now());
  script.wait(Duration(0));
  EXPECT_EQ(script.coordinator().history().canonical, kFirst);
}

TEST(CoordinatorLog, AnEmptyLogMeetsReplicasThatHaveTrained) {
  CoordinatorScript script(options_of(1, 1));
  script.report(0).held = StateId{5, {7, 7}};
  script.report(0).run = 44;
  script.say(0);
  script.say(1);  // It has restarted empty.
  script.wait(std::chrono::hours(1));
  EXPECT_EQ(script.coordinator().history().canonical, std::nullopt);
  EXPECT_THAT(
      script.coordinator().complaint(),
      HasSubstr("the log is empty, but replica 0 is of run 44"));
}

// The same replica, when there are more new replicas than replicas of the other run.
TEST(CoordinatorLog, OneThatIsLeftOverFromAnotherRunBlocksNobody) {
  CoordinatorScript script(options_of(1, 2));
  script.report(7).held = StateId{5, {7, 7}};
  script.report(7).run = 44;
  script.say(7);
  EXPECT_THAT(
      script.coordinator().complaint(), HasSubstr("wait for 2 new replicas"));
  script.say(0);
  script.wait(std::chrono::hours(1));
  EXPECT_EQ(script.coordinator().history().canonical, std::nullopt);
  script.say(1);
  EXPECT_EQ(script.coordinator().complaint(), "");
  script.wait(kSettle);
  EXPECT_EQ(script.coordinator().history().canonical, kFirst);
  script.say(7);
  EXPECT_THAT(script.view(7).fenced, HasSubstr("the replica is of run 44"));
}

TEST(CoordinatorLog, ANewRunBeginsWhenTheReplicaOfTheOtherHasGone) {
  CoordinatorScript script(options_of(1, 1));
  script.report(7).run = 44;
  script.say(7);
  script.say(0);
  script.wait(kSettle);
  EXPECT_EQ(script.coordinator().history().canonical, std::nullopt);
  script.lose(7);
  EXPECT_EQ(script.coordinator().complaint(), "");
  EXPECT_EQ(script.coordinator().history().canonical, kFirst);
}

TEST(CoordinatorLog, ANewLogBeginsWithTheNewestCheckpointWhenItIsToldTo) {
  auto options = options_of(1, 3);
  options.recovers = true;
  CoordinatorScript script(options);
  const StateId saved{5, {7, 7}};
  script.report(0).held = saved;
  script.report(1).held = StateId{3, {6, 6}};
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    script.say(replica);
  }
  script.wait(kJoin);  // Other replicas might remember a run.
  script.join({0});
  EXPECT_EQ(script.view(1).canonical, saved);
  EXPECT_THAT(script.members(1), ElementsAre(0));
  // The samples begin behind those of five full steps; a rollback gives none of them back.
  EXPECT_THAT(
      script.view(0).members[0].samples, ElementsAre(SampleRange{120, 128}));
  EXPECT_EQ(script.coordinator().history().consumed.size(), 120);
  EXPECT_EQ(fold(script.log()), script.coordinator().history());
  // A replica with an older checkpoint fetches the rest and is no reason to stop.
  script.report(1).run = 1;
  script.say(1);
  EXPECT_EQ(script.coordinator().complaint(), "");
  script.vote(0);
  EXPECT_EQ(script.view(1).canonical.step, 6);
  EXPECT_EQ(
      script.view(0).members[0].samples, (std::vector{SampleRange{128, 136}}));
}

TEST(CoordinatorLog, ANewLogRefusesACheckpointUnlessItIsToldTo) {
  CoordinatorScript script(options_of(1, 2));
  script.report(0).held = StateId{5, {7, 7}};
  script.say(0);
  EXPECT_THAT(
      script.view(0).fenced,
      AllOf(
          HasSubstr("the log of the run that has made step 5"),
          HasSubstr("--recover-from-replicas")));
  EXPECT_TRUE(is_final_refusal(script.view(0).fenced));
  EXPECT_EQ(script.coordinator().complaint(), "");
  EXPECT_FALSE(script.coordinator().counts(0, 100));
  script.report(0).incarnation = 7;  // It may come without that state.
  script.report(0).held = kFirst;
  script.begin({0, 1});
  EXPECT_THAT(script.members(0), ElementsAre(0, 1));
}

TEST(CoordinatorLog, ACheckpointOfAnotherRunIsRefusedAndDisturbsNobody) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.report(2).held = StateId{1, {7, 7}};
  script.say(2);
  EXPECT_THAT(
      script.view(2).fenced,
      HasSubstr("expected a checkpoint of this run, or none, found step 1"));
  EXPECT_TRUE(is_final_refusal(script.view(2).fenced));
  EXPECT_EQ(script.coordinator().complaint(), "");
  EXPECT_FALSE(script.coordinator().counts(2, 102));
  script.vote(0);
  script.vote(1);
  EXPECT_EQ(script.view(0).canonical.step, 1);
  EXPECT_EQ(script.view(0).stage, EpochStage::kRunning);
}

TEST(CoordinatorLog, ACheckpointOfTheRunIsWhereItGoesBackTo) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  StateId saved;
  for (int step = 1; step <= 3; ++step) {
    script.vote(0);
    script.vote(1);
    script.apply({0, 1});
    saved = step == 2 ? script.view(0).canonical : saved;
  }
  for (const ReplicaId replica : {0U, 1U}) {
    script.lose(replica);
    script.report(replica).incarnation += 10;
    script.report(replica).held = saved;
  }
  script.say(0);
  script.wait(kHold / 2);  // Replica 1 may come back with its state.
  EXPECT_EQ(script.coordinator().history().canonical->step, 3);
  script.say(1);  // No replica can hold it any more.
  EXPECT_EQ(script.coordinator().history().canonical, saved);
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0, 1));
  // The samples of the lost step are given out again.
  EXPECT_THAT(
      script.view(0).members[0].samples, ElementsAre(SampleRange{32, 40}));
}

TEST(CoordinatorLog, WhoInstallsWhatIsLackingIsWaitedFor) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.vote(0);
  script.vote(1);
  script.apply({0});
  script.report(1).progress.activity = Activity::kFetching;
  script.say(1);
  script.lose(0);
  script.report(0).incarnation = 2;  // It has only the initial state.
  script.report(0).held = kFirst;
  script.say(0);
  script.wait(2 * kJoin);
  EXPECT_EQ(script.coordinator().history().canonical->step, 1);
}

// The only replica of the run has ended with step 1.
CoordinatorScript at_the_end() {
  CoordinatorScript script(options_of(1, 1));
  script.begin({0});
  script.vote(0);
  script.apply({0});
  script.report(0).finished = true;
  script.say(0);
  return script;
}

// It is gone, too.
CoordinatorScript after_the_end() {
  auto script = at_the_end();
  script.lose(0);
  return script;
}

// Two replicas, of which each step needs both, have ended with step 1.
CoordinatorScript after_the_end_of_two() {
  CoordinatorScript script(options_of(2, 2));
  script.begin({0, 1});
  script.vote(0);
  script.vote(1);
  script.apply({0, 1});
  for (const ReplicaId replica : {0U, 1U}) {
    script.report(replica).finished = true;
    script.say(replica);
  }
  script.lose(0);
  script.lose(1);
  return script;
}

void start_anew(
    CoordinatorScript& script,
    ReplicaId replica,
    const StateId& loaded = kFirst) {
  auto& report = script.report(replica);
  report.incarnation += 1000;
  report.finished = false;
  report.held = loaded;
  report.joined = {};
  report.vote.reset();
  script.say(replica);
  script.wait(kSettle);
}

TEST(CoordinatorLog, NobodyTrainsAgainWhatHasEnded) {
  auto script = after_the_end();
  script.report(1).held = kFirst;
  script.say(1);
  EXPECT_THAT(
      script.view(1).fenced, HasSubstr("the run has ended with step 1"));
  EXPECT_TRUE(script.view(1).ended);
  script.wait(kHold * 2);
  EXPECT_EQ(script.coordinator().history().canonical->step, 1);
}

// What the only holder of the last step had is lost, so its program could not save it.
TEST(CoordinatorLog, WhoIsStartedAgainAfterTheLastStepMakesItAnew) {
  auto script = after_the_end();
  start_anew(script, 0);
  EXPECT_THAT(script.view(0).fenced, IsEmpty());
  script.wait(2 * kJoin);
  EXPECT_EQ(script.coordinator().history().canonical->step, 0);
  script.wait(kSettle);
  script.join({0});
  script.vote(0);
  EXPECT_EQ(script.coordinator().history().canonical->step, 1);
}

// The first one cannot know that the second one has failed, too.
TEST(CoordinatorLog, AnEndOfWhichNobodyIsLeftIsNoSuccessOfAll) {
  auto script = after_the_end_of_two();
  start_anew(script, 0);
  EXPECT_TRUE(script.view(0).ended);
  EXPECT_FALSE(is_final_refusal(script.view(0).fenced));
  start_anew(script, 1);
  EXPECT_FALSE(script.view(1).ended);
  EXPECT_THAT(
      script.view(1).fenced,
      HasSubstr("each replica that had it has failed since"));
  EXPECT_TRUE(is_final_refusal(script.view(1).fenced));
  script.wait(kHold * 2);
  EXPECT_EQ(script.coordinator().history().canonical->step, 1);
}

TEST(CoordinatorLog, WhoHasTheEndFromADiskIsOneThatHasEnded) {
  auto script = after_the_end_of_two();
  const auto end = script.view(0).canonical;
  start_anew(script, 0, end);  // It saves it, if it has not.
  EXPECT_TRUE(script.view(0).ended);
  start_anew(script, 1);
  EXPECT_TRUE(script.view(1).ended);
}

TEST(CoordinatorLog, AnEndOutlivesTheCoordinatorIfItIsToldOfIt) {
  auto options = options_of(1, 1);
  options.ended = true;
  CoordinatorScript script(options, fold(after_the_end().log()));
  script.say(1);
  script.wait(kSettle);
  EXPECT_EQ(script.views(), 1);  // Who has ended may still be there.
  script.wait(options.reconnect_timeout);
  EXPECT_TRUE(script.view(1).ended);
  script.wait(kHold * 2);
  EXPECT_EQ(script.coordinator().history().canonical->step, 1);
}

// A program that has ended early was no end of the run.
TEST(CoordinatorLog, WhoStillHasTheStateGoesOnAfterAnEnd) {
  const auto end = after_the_end();
  auto options = options_of(1, 1);
  options.ended = true;
  CoordinatorScript script(options, fold(end.log()));
  script.report(1).held = end.coordinator().history().canonical;
  script.begin({1});
  script.wait(kHold * 2);
  script.join({1});
  script.vote(1);
  EXPECT_EQ(script.coordinator().history().canonical->step, 2);
}

TEST(CoordinatorLog, WhoHoldsNothingHearsThatTheRunHasEnded) {
  auto script = after_the_end();
  // Its bits were wrong, so it had begun to fetch.
  script.report(1).held.reset();
  script.say(1);
  EXPECT_TRUE(script.view(1).ended);
}

// Its program was told to make fewer steps.
TEST(CoordinatorLog, WhoHasEndedEarlierDoesNotMoveTheEnd) {
  auto script = at_the_end();
  script.report(1).held = kFirst;
  script.report(1).finished = true;
  script.say(1);
  script.lose(0);
  script.wait(kHold * 2);
  EXPECT_EQ(script.coordinator().history().canonical->step, 1);
  EXPECT_THAT(
      script.view(1).fenced, HasSubstr("the run has ended with step 1"));
}

TEST(CoordinatorLog, WhoHasTheLastStepDoesNotWaitForThoseThatHaveEnded) {
  auto script = after_the_end_of_two();
  script.report(2).held = script.view(0).canonical;
  script.say(2);
  script.wait(std::chrono::seconds(2));
  EXPECT_TRUE(script.view(2).ended);
}

}  // namespace
}  // namespace sherd::ft
