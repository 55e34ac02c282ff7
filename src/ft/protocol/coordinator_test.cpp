// SPDX-License-Identifier: Apache-2.0
//
// What the coordinator decides, and why. Time is a number here.
#include "ft/protocol/coordinator_play_testing.h"

#include <gmock/gmock.h>

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Coordinator, TheFirstEpochWaitsForAllOrForItsTimeout) {
  Play all(options_of(1, 2));
  all.say(0);
  all.wait(kSettle);
  EXPECT_EQ(all.coordinator().phase(), Coordinator::Phase::kForming);
  all.say(1);
  EXPECT_EQ(all.order(0).stage, Stage::kJoining);
  EXPECT_THAT(all.members(0), ElementsAre(0, 1));
  EXPECT_THAT(all.order(0).members[1].samples, ElementsAre(SampleRange{8, 16}));

  Play some(options_of(1, 2));
  some.say(0);
  some.wait(std::chrono::seconds(61));
  EXPECT_THAT(some.members(0), ElementsAre(0));
}

TEST(Coordinator, NobodyReducesBeforeAllHaveJoined) {
  Play play(options_of(1, 3));
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    play.say(replica);
  }
  play.wait(kSettle);
  play.join({0, 2});
  EXPECT_EQ(play.order(0).stage, Stage::kJoining);
  play.join({1});
  EXPECT_EQ(play.order(0).stage, Stage::kRunning);
}

TEST(Coordinator, WhoDoesNotJoinIsLeftOut) {
  Play play(options_of(2, 3));
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    play.say(replica);
  }
  play.wait(kSettle);
  play.join({0, 2});
  play.wait(kJoin);
  EXPECT_THAT(play.members(0), ElementsAre(0, 2));
  EXPECT_THAT(
      play.reasons().back(), HasSubstr("replica 1 has not joined epoch 1.1"));
}

TEST(Coordinator, CommitsWhatAllHaveReduced) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.vote(0);
  EXPECT_EQ(play.order(0).canonical, kFirst);
  play.vote(1);
  EXPECT_EQ(play.order(0).canonical.step, 1);
  EXPECT_EQ(play.order(0).recent.back().base, kFirst);
  const auto& record = std::get<CommitRecord>(play.log().back());
  EXPECT_THAT(record.participants[1].samples, ElementsAre(SampleRange{8, 16}));
  // In the same epoch, of the samples that come next.
  EXPECT_EQ(play.order(1).stage, Stage::kRunning);
  EXPECT_EQ(play.order(1).epoch, (Epoch{1, 1}));
  EXPECT_THAT(
      play.order(1).members[1].samples, ElementsAre(SampleRange{24, 32}));
}

TEST(Coordinator, TheOthersTakeOverAMissingReplicasShare) {
  auto options = options_of(1, 3);
  options.samples_in_all = 24;
  options.samples_multiple = 2;
  Play play(options);
  play.begin({0, 1, 2});
  EXPECT_EQ(play.order(0).members[2].samples[0].size(), 8);
  play.lose(1);
  play.wait(kSettle);
  // This step goes on with what was computed, the next one is whole again.
  EXPECT_EQ(play.order(0).members[0].samples[0].size(), 8);
  play.join({0, 2});
  play.vote(0);
  play.vote(2);
  EXPECT_EQ(play.order(0).recent.back().samples, 16);
  EXPECT_THAT(
      play.order(0).members[0].samples,
      ElementsAre(SampleRange{8, 16}, SampleRange{24, 28}));
  EXPECT_THAT(
      play.order(0).members[1].samples, ElementsAre(SampleRange{28, 40}));
}

TEST(Coordinator, ADeathIsANewEpochOfTheSameStepAndSamples) {
  Play play(options_of(1, 3));
  play.begin({0, 1, 2});
  play.lose(1);
  EXPECT_EQ(play.order(0).stage, Stage::kClosed);
  play.wait(kSettle);
  EXPECT_EQ(play.order(0).epoch, (Epoch{1, 2}));
  EXPECT_THAT(play.members(0), ElementsAre(0, 2));
  EXPECT_THAT(
      play.order(0).members[1].samples, ElementsAre(SampleRange{16, 24}));
  EXPECT_THAT(play.reasons().back(), HasSubstr("replica 1 was lost"));
  play.join({0, 2});
  play.vote(0);
  play.vote(2);
  EXPECT_EQ(play.order(0).canonical.step, 1);
  // What replica 1 had is free again.
  EXPECT_THAT(
      play.order(0).members[0].samples, ElementsAre(SampleRange{8, 16}));
}

TEST(Coordinator, DifferentSumsAreNeverCommitted) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.vote(0, 5);
  play.vote(1, 6);
  EXPECT_EQ(play.order(0).canonical, kFirst);
  EXPECT_EQ(play.order(0).epoch, (Epoch{1, 2}));
  EXPECT_THAT(play.reasons().back(), HasSubstr("has another sum"));
}

TEST(Coordinator, BelowTheMinimumNothingIsCommitted) {
  Play play(options_of(2, 2));
  play.begin({0, 1});
  play.vote(0);
  play.lose(1);
  play.wait(kHold * 2);
  EXPECT_EQ(play.order(0).epoch, (Epoch{1, 1}));
  EXPECT_EQ(play.coordinator().phase(), Coordinator::Phase::kForming);
  play.say(1);  // The same life, connected anew.
  play.wait(kSettle);
  EXPECT_EQ(play.order(0).epoch, (Epoch{1, 2}));
}

TEST(Coordinator, WhoHungAndDoesSomethingElseDoesNotHang) {
  Play play(options_of(2, 2));
  play.begin({0, 1});
  play.report(1).progress.activity = Activity::kReducing;
  play.say(1);
  play.hang(1);
  play.wait(kSettle);
  EXPECT_EQ(play.coordinator().phase(), Coordinator::Phase::kForming);
  // Nothing was reduced, so nothing was counted: it has stopped waiting alone.
  play.report(1).progress.activity = Activity::kWaiting;
  play.say(1);
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0, 1));
}

TEST(Coordinator, WhoHasCaughtUpIsPlannedForAndStopsNobody) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.vote(0);
  play.vote(1);
  play.apply({0, 1});
  play.say(2);  // Fresh: it lacks one step.
  EXPECT_THAT(play.members(0), ElementsAre(0, 1));
  EXPECT_EQ(play.order(0).stage, Stage::kRunning);
  ASSERT_TRUE(play.order(0).planned.has_value());
  EXPECT_EQ(play.order(2).planned->members.size(), 3U);
  play.apply({2});  // It has caught up.
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    play.report(replica).joined = play.order(replica).planned->epoch;
    play.say(replica);
  }
  EXPECT_THAT(play.members(0), ElementsAre(0, 1));
  play.vote(0);
  play.vote(1);
  // It begins with the commit, running. Who lacks that follows without samples.
  EXPECT_EQ(play.order(2).canonical.step, 2);
  EXPECT_EQ(play.order(2).stage, Stage::kRunning);
  EXPECT_THAT(play.members(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(play.order(0).members[2].samples, IsEmpty());
  EXPECT_THAT(
      play.order(0).members[0].samples, ElementsAre(SampleRange{32, 40}));
  play.apply({0, 1, 2});
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    play.vote(replica);
  }
  EXPECT_EQ(play.order(2).canonical.step, 3);
  EXPECT_THAT(
      play.order(2).members[2].samples, ElementsAre(SampleRange{64, 72}));
}

TEST(Coordinator, APlanThatIsNotJoinedIsDroppedForLongerEachTime) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.say(2);
  const auto first = play.order(0).planned->epoch;
  play.wait(kJoin);
  EXPECT_EQ(play.order(0).planned, std::nullopt);
  EXPECT_EQ(play.order(0).stage, Stage::kRunning);
  play.wait(kJoin);
  ASSERT_TRUE(play.order(0).planned.has_value());
  EXPECT_GT(play.order(0).planned->epoch, first);
  // Whatever was promised to it, the others commit.
  play.vote(0);
  play.vote(1);
  EXPECT_EQ(play.order(0).canonical.step, 1);
  EXPECT_THAT(play.members(0), ElementsAre(0, 1));
}

TEST(Coordinator, AMemberThatLeavesCostsANewcomerNothing) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.say(2);
  ASSERT_TRUE(play.order(0).planned.has_value());
  play.report(1).leaving = true;
  play.say(1);
  play.vote(0);
  play.vote(1);
  play.apply({0, 1, 2});
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0));
  play.join({0});
  // It is not kept out for as long as one that could not join.
  EXPECT_TRUE(play.order(0).planned.has_value());
}

void join_plan(Play& play, std::initializer_list<ReplicaId> replicas) {
  for (const auto replica : replicas) {
    play.report(replica).joined = play.order(0).planned->epoch;
    play.say(replica);
  }
}

// Rings have room for two epochs.
TEST(Coordinator, PlansWhenAllHaveBegunWhatIsUnderWay) {
  Play play(options_of(1, 1));
  play.begin({0});
  play.say(1);
  join_plan(play, {0, 1});
  play.say(2);
  play.vote(0);
  EXPECT_EQ(play.order(0).members.size(), 2U);
  EXPECT_FALSE(play.order(0).planned.has_value());
  play.apply({0});
  EXPECT_FALSE(play.order(0).planned.has_value());
  play.apply({1});
  ASSERT_TRUE(play.order(0).planned.has_value());
  EXPECT_EQ(play.order(0).planned->members.size(), 3U);
}

TEST(Coordinator, AnEpochThatAMemberHasLostBeforeItBeganEnds) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  const auto former = play.order(0).epoch;
  play.say(2);
  join_plan(play, {0, 1, 2});
  play.vote(0);
  play.vote(1);
  ASSERT_GT(play.order(0).epoch, former);
  // It lost both at once, and says so of the one that it knew of.
  play.report(1).joined = former;
  play.report(1).suspicion = Suspicion{former, 0, "connection reset"};
  play.say(1);
  EXPECT_EQ(play.order(0).stage, Stage::kClosed);
}

TEST(Coordinator, AVoteProvesACompleteSumWhoeverDies) {
  Play play(options_of(1, 3));
  play.begin({0, 1, 2});
  play.vote(0);
  play.lose(1);
  // Its samples are in the sum, and 2 can get that from 0.
  EXPECT_EQ(play.order(2).canonical.step, 1);
  EXPECT_EQ(play.order(2).stage, Stage::kClosed);
  play.apply({0, 2});
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0, 2));
  EXPECT_THAT(
      play.order(0).members[1].samples, ElementsAre(SampleRange{40, 48}));
}

TEST(Coordinator, WhoIsLateWithItsVoteIsNotWaitedForForever) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.vote(0);
  play.wait(kVote - kSettle);
  EXPECT_EQ(play.order(0).canonical, kFirst);
  play.wait(kSettle);
  EXPECT_EQ(play.order(0).canonical.step, 1);
  EXPECT_EQ(play.order(1).stage, Stage::kRunning);
  EXPECT_THAT(play.reasons().back(), HasSubstr("the others are late"));
}

TEST(Coordinator, WhoFailsItsPeersAgainStaysOutLonger) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  for (const auto out : {Duration(0), kJoin, 2 * kJoin}) {
    play.lose(1);
    play.wait(kSettle);
    EXPECT_THAT(play.members(0), ElementsAre(0));
    play.join({0});
    play.report(1).joined = {};
    play.report(1).held = play.order(0).canonical;
    play.say(1);
    play.wait(std::max(out - 2 * kSettle, Duration(0)));
    EXPECT_EQ(play.order(0).planned.has_value(), out == Duration(0));
    play.wait(2 * kSettle);
    ASSERT_TRUE(play.order(0).planned.has_value());
    for (const ReplicaId replica : {0U, 1U}) {
      play.report(replica).joined = play.order(0).planned->epoch;
      play.say(replica);
    }
    play.vote(0);
    play.apply({0, 1});
    EXPECT_THAT(play.members(0), ElementsAre(0, 1));
  }
}

TEST(Coordinator, MostMembersSayWhoseSumIsWrong) {
  Play play(options_of(1, 3));
  play.begin({0, 1, 2});
  play.vote(0, 5);
  play.vote(2, 5);
  play.vote(1, 6);
  EXPECT_EQ(play.order(0).canonical, kFirst);
  EXPECT_EQ(
      play.coordinator().why(),
      "replica 1 has another sum of gradients than replica 0");
  EXPECT_THAT(play.members(0), ElementsAre(0, 1, 2));  // The first time.
  play.join({0, 1, 2});
  play.vote(0, 5);
  play.vote(1, 6);
  play.vote(2, 5);
  EXPECT_THAT(play.members(0), ElementsAre(0, 2));
}

TEST(Coordinator, WhoLeavesFinishesItsStep) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.report(1).leaving = true;
  play.vote(1);
  EXPECT_EQ(play.order(0).epoch, (Epoch{1, 1}));
  play.vote(0);
  EXPECT_EQ(play.order(0).canonical.step, 1);
  play.apply({0, 1});
  EXPECT_EQ(play.order(0).epoch, (Epoch{1, 2}));
  EXPECT_THAT(play.members(0), ElementsAre(0));
}

TEST(Coordinator, ABrokenLinkIsANewEpochOfAll) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.report(0).suspicion = Suspicion{{1, 1}, 1, "connection reset"};
  play.say(0);
  play.wait(kSettle);
  EXPECT_EQ(play.order(0).epoch, (Epoch{1, 2}));
  EXPECT_THAT(play.members(0), ElementsAre(0, 1));
  EXPECT_THAT(
      play.reasons().back(),
      HasSubstr("replica 0 suspects replica 1: connection reset"));
  // What was suspected then is over.
  play.join({0, 1});
  EXPECT_EQ(play.order(0).stage, Stage::kRunning);
}

TEST(Coordinator, ANewerLifeFencesTheOlder) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  const auto old = play.report(1);
  play.report(1).incarnation = 777;
  play.report(1).joined = {};
  play.say(1);
  EXPECT_EQ(play.order(1).fenced, "");
  play.report(1) = old;
  play.say(1);
  EXPECT_THAT(play.order(1).fenced, HasSubstr("replaced by a newer one"));
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0));
  play.join({0});
  EXPECT_EQ(play.order(0).planned->members[1].incarnation, 777U);
}

TEST(Coordinator, WhoHangsIsLeftOutAndStillHoldsWhatItHolds) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.hang(1);
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0));
  EXPECT_EQ(play.order(1).epoch, play.order(0).epoch);  // It is told.
  play.join({0});
  play.vote(0);
  play.apply({0, 1});
  play.hang(0);
  play.lose(1);
  play.report(2).held = kFirst;
  play.say(2);
  play.wait(kHold * 2);
  // Whoever hangs may wake up.
  EXPECT_EQ(play.coordinator().history().canonical->step, 1);
  play.report(0).progress.serial = 1;
  play.say(0);
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0));
}

TEST(Coordinator, ALinkThatFailsAgainAndAgainCostsItsEndAPlace) {
  Play play(options_of(1, 3));
  play.begin({0, 1, 2});
  for (int times = 0; times < 4; ++times) {
    const auto epoch = play.order(0).epoch;
    play.report(0).suspicion = Suspicion{epoch, 1, "checksum"};
    play.say(0);
    play.wait(kSettle);
    play.join({0, 1, 2});
  }
  EXPECT_THAT(play.members(0), ElementsAre(0, 2));
}

TEST(Coordinator, ADeathThatAllNoticeIsOneSuspicion) {
  Play play(options_of(1, 4));
  play.begin({0, 1, 2, 3});
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    play.report(replica).suspicion = Suspicion{{1, 1}, 3, "connection reset"};
    play.say(replica);
  }
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0, 1, 2, 3));
}

// Of whom its peers speak before its connection ends: it stays out all the same.
TEST(Coordinator, ADeathThatPeersNoticeFirstIsADeathToo) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  for (const bool again : {false, true}) {
    play.report(0).suspicion =
        Suspicion{play.order(0).epoch, 1, "connection reset"};
    play.say(0);
    play.lose(1);
    play.report(0).suspicion = {};
    play.wait(kSettle);
    play.join({0});
    play.report(1).joined = {};
    play.report(1).held = play.order(0).canonical;
    play.say(1);
    EXPECT_EQ(play.order(0).planned.has_value(), !again);
    if (!again) {
      for (const ReplicaId replica : {0U, 1U}) {
        play.report(replica).joined = play.order(0).planned->epoch;
        play.say(replica);
      }
      play.vote(0);
      play.apply({0, 1});
    }
  }
}

TEST(Coordinator, OtherFirstValuesAreFetchedOver) {
  Play play(options_of(1, 1));
  play.begin({0});
  play.report(1).run = 1;
  play.report(1).held = StateId{0, {9, 9}};
  play.say(1);
  EXPECT_EQ(play.coordinator().complaint(), "");
  EXPECT_THAT(play.members(0), ElementsAre(0));
}

TEST(Coordinator, RefusesStrangers) {
  auto options = options_of(1, 1);
  options.replicas_max = 8;
  Play play(options);
  play.begin({0});
  const auto fenced = [&](ReplicaId replica) {
    play.say(replica);
    return play.order(replica).fenced;
  };
  play.report(1).run = 99;
  EXPECT_EQ(fenced(1), "this is run 1, the replica is of run 99");
  play.report(2).config = 10;
  EXPECT_THAT(
      fenced(2),
      HasSubstr("expected the configuration 9 of the other replicas"));
  EXPECT_EQ(fenced(8), "expected a replica below 8, found 8");
  EXPECT_THAT(play.members(0), ElementsAre(0));
}

TEST(Coordinator, AReportThatWasOvertakenChangesNothing) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.report(0).serial = 7;
  play.vote(0);
  const auto voted = play.report(0);
  play.report(0).serial = 6;
  play.report(0).held.reset();
  play.report(0).vote.reset();
  play.say(0);
  EXPECT_EQ(play.order(1).stage, Stage::kRunning);
  play.report(0) = voted;
  play.vote(1);
  EXPECT_EQ(play.coordinator().history().canonical->step, 1);
}

}  // namespace
}  // namespace sherd::ft
