// SPDX-License-Identifier: Apache-2.0
//
// What the coordinator decides over its log: in a new term, when those who hold the
// last step are gone, when replicas come with checkpoints, and when the run has ended.
#include "ft/protocol/coordinator_play_testing.h"

#include <gmock/gmock.h>

namespace sherd::ft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

History fold(const std::vector<Record>& log) {
  History history;
  for (const auto& record : log) {
    append(history, record);
  }
  return history;
}

TEST(CoordinatorLog, ANewTermGoesOnFromTheLog) {
  Play first(options_of(1, 2));
  first.begin({0, 1});
  first.vote(0);
  first.vote(1);
  const auto history = fold(first.log());
  EXPECT_EQ(history, first.coordinator().history());
  Play second(options_of(1, 2), history);
  // One has applied the step, the other has heard nothing of it.
  second.report(0).held = history.canonical;
  second.report(1).vote =
      Vote{history.commit()->attempt, history.commit()->base, 5};
  second.say(0);
  second.say(1);
  EXPECT_EQ(second.order(1).recent, history.recent(8));
  second.wait(kSettle);
  EXPECT_EQ(second.order(0).epoch, (Epoch{1, 1}));  // It waits for the other.
  second.apply({1});
  EXPECT_EQ(second.order(0).epoch, (Epoch{2, 2}));
  EXPECT_EQ(second.order(0).canonical, *history.canonical);
  // The samples that they have gradients of.
  EXPECT_THAT(
      second.order(1).members[1].samples, ElementsAre(SampleRange{24, 32}));
}

TEST(CoordinatorLog, ANewTermWaitsAMomentForTheLastMembers) {
  Play first(options_of(1, 2));
  first.begin({0, 1});
  Play second(options_of(1, 2), fold(first.log()));
  second.say(0);
  second.wait(kJoin / 2);
  EXPECT_EQ(second.order(0).stage, Stage::kClosed);
  second.say(1);
  EXPECT_THAT(second.members(0), ElementsAre(0, 1));
  Play third(options_of(1, 2), fold(first.log()));
  third.say(0);
  third.wait(kJoin);
  EXPECT_THAT(third.members(0), ElementsAre(0));
}

TEST(CoordinatorLog, ANewTermKnowsWhichLivesAreOver) {
  Play first(options_of(1, 2));
  first.begin({0, 1});
  const auto old = first.report(1);
  first.report(1).incarnation = 777;
  first.say(1);
  Play second(options_of(1, 2), fold(first.log()));
  second.report(1) = old;
  second.say(1);
  EXPECT_THAT(second.order(1).fenced, HasSubstr("replaced by a newer one"));
}

TEST(CoordinatorLog, ALogThatLostRecordsCommitsNothing) {
  Play first(options_of(1, 2));
  first.begin({0, 1});
  const auto before = fold(first.log());
  first.vote(0);
  first.vote(1);
  Play second(options_of(1, 2), before);
  second.report(0).run = before.run;
  second.report(0).held = first.order(0).canonical;
  second.report(1).run = before.run;
  second.say(1);
  second.say(0);
  second.wait(kHold * 2);
  EXPECT_THAT(
      second.coordinator().complaint(),
      HasSubstr("which the log does not know"));
  EXPECT_EQ(second.coordinator().history().epoch, before.epoch);
}

TEST(CoordinatorLog, RollsBackWhenAllHoldersAreGoneForLong) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.vote(0);
  play.vote(1);
  play.apply({0, 1});
  play.lose(0);
  play.lose(1);
  play.report(2).held = kFirst;
  play.say(2);
  play.wait(kHold - kSettle);
  EXPECT_EQ(play.coordinator().history().canonical->step, 1);
  EXPECT_EQ(play.coordinator().next_tick(kHold).has_value(), true);
  play.wait(kSettle);
  EXPECT_EQ(play.coordinator().history().canonical, kFirst);
  EXPECT_THAT(play.members(2), ElementsAre(2));
  EXPECT_THAT(play.order(2).members[0].samples, ElementsAre(SampleRange{0, 8}));
  play.say(0);  // Held what was lost: another branch now.
  EXPECT_THAT(play.members(2), ElementsAre(2));
}

TEST(CoordinatorLog, AnEmptyLogMeetsReplicasThatHaveTrained) {
  Play play(options_of(1, 1));
  play.report(0).held = StateId{5, {7, 7}};
  play.report(0).run = 44;
  play.say(0);
  play.say(1);  // Fresh.
  play.wait(std::chrono::hours(1));
  EXPECT_EQ(play.coordinator().history().canonical, std::nullopt);
  EXPECT_EQ(
      play.coordinator().complaint(),
      "the log is empty, but replica 0 is of run 44");
}

TEST(CoordinatorLog, ANewLogBeginsWithTheNewestCheckpointWhenItIsToldTo) {
  auto options = options_of(1, 3);
  options.recovers = true;
  Play play(options);
  const StateId saved{5, {7, 7}};
  play.report(0).held = saved;
  play.report(1).held = StateId{3, {6, 6}};
  play.begin({0, 1, 2});
  EXPECT_EQ(play.order(1).canonical, saved);
  EXPECT_THAT(play.members(1), ElementsAre(0));
  // Behind what five full steps have taken; a rollback gives none of it back.
  EXPECT_THAT(
      play.order(0).members[0].samples, ElementsAre(SampleRange{120, 128}));
  EXPECT_EQ(play.coordinator().history().consumed.size(), 120);
  EXPECT_EQ(fold(play.log()), play.coordinator().history());
  // Who has an older one fetches the rest, and is no reason to stop.
  play.report(1).run = 1;
  play.say(1);
  EXPECT_EQ(play.coordinator().complaint(), "");
  play.vote(0);
  EXPECT_EQ(play.order(1).canonical.step, 6);
  EXPECT_EQ(
      play.order(0).members[0].samples, (std::vector{SampleRange{128, 136}}));
}

TEST(CoordinatorLog, ANewLogRefusesACheckpointUnlessItIsToldTo) {
  Play play(options_of(1, 2));
  play.report(0).held = StateId{5, {7, 7}};
  play.say(0);
  EXPECT_THAT(
      play.order(0).fenced,
      AllOf(
          HasSubstr("the log of the run that has made step 5"),
          HasSubstr("--recover-from-replicas")));
  EXPECT_EQ(play.coordinator().complaint(), "");
  EXPECT_FALSE(play.coordinator().counts(0, 100));
  play.report(0).incarnation = 7;  // Without it, it may come.
  play.report(0).held = kFirst;
  play.begin({0, 1});
  EXPECT_THAT(play.members(0), ElementsAre(0, 1));
}

TEST(CoordinatorLog, ACheckpointOfAnotherRunIsRefusedAndDisturbsNobody) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.report(2).held = StateId{1, {7, 7}};
  play.say(2);
  EXPECT_THAT(
      play.order(2).fenced,
      HasSubstr("expected a checkpoint of this run, or none, found step 1"));
  EXPECT_EQ(play.coordinator().complaint(), "");
  EXPECT_FALSE(play.coordinator().counts(2, 102));
  play.vote(0);
  play.vote(1);
  EXPECT_EQ(play.order(0).canonical.step, 1);
  EXPECT_EQ(play.order(0).stage, Stage::kRunning);
}

TEST(CoordinatorLog, ACheckpointOfTheRunIsWhereItGoesBackTo) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  StateId saved;
  for (int step = 1; step <= 3; ++step) {
    play.vote(0);
    play.vote(1);
    play.apply({0, 1});
    saved = step == 2 ? play.order(0).canonical : saved;
  }
  for (const ReplicaId replica : {0U, 1U}) {
    play.lose(replica);
    play.report(replica).incarnation += 10;
    play.report(replica).held = saved;
  }
  play.say(0);
  play.wait(kHold / 2);  // Replica 1 may come as it was.
  EXPECT_EQ(play.coordinator().history().canonical->step, 3);
  play.say(1);  // Nobody can hold it any more.
  EXPECT_EQ(play.coordinator().history().canonical, saved);
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0, 1));
  // What the lost step took is given out again.
  EXPECT_THAT(
      play.order(0).members[0].samples, ElementsAre(SampleRange{32, 40}));
}

TEST(CoordinatorLog, WhoInstallsWhatIsLackingIsWaitedFor) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.vote(0);
  play.vote(1);
  play.apply({0});
  play.report(1).progress.activity = Activity::kFetching;
  play.say(1);
  play.lose(0);
  play.report(0).incarnation = 2;  // It has nothing but the first values.
  play.report(0).held = kFirst;
  play.say(0);
  play.wait(2 * kJoin);
  EXPECT_EQ(play.coordinator().history().canonical->step, 1);
}

// Its only replica has ended with step 1, and gone.
Play after_the_end() {
  Play play(options_of(1, 1));
  play.begin({0});
  play.vote(0);
  play.apply({0});
  play.report(0).finished = true;
  play.say(0);
  play.lose(0);
  return play;
}

TEST(CoordinatorLog, NobodyTrainsAgainWhatHasEnded) {
  auto play = after_the_end();
  play.report(1).held = kFirst;
  play.say(1);
  EXPECT_THAT(play.order(1).fenced, HasSubstr("the run has ended with step 1"));
  EXPECT_TRUE(play.order(1).ended);
  play.wait(kHold * 2);
  EXPECT_EQ(play.coordinator().history().canonical->step, 1);
}

TEST(CoordinatorLog, WhoHoldsNothingHearsThatTheRunHasEnded) {
  auto play = after_the_end();
  play.report(1).held.reset();  // Its bits were wrong: it had begun to fetch.
  play.say(1);
  EXPECT_TRUE(play.order(1).ended);
}

TEST(CoordinatorLog, WhoHasTheLastStepDoesNotWaitForThoseThatHaveEnded) {
  Play play(options_of(2, 2));
  play.begin({0, 1});
  play.vote(0);
  play.vote(1);
  play.apply({0, 1});
  for (const ReplicaId replica : {0U, 1U}) {
    play.report(replica).finished = true;
    play.say(replica);
  }
  play.lose(0);
  play.lose(1);
  play.report(2).held = play.order(0).canonical;
  play.say(2);
  play.wait(std::chrono::seconds(2));
  EXPECT_TRUE(play.order(2).ended);
}

}  // namespace
}  // namespace sherd::ft
