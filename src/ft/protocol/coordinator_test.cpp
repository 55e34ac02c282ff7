// SPDX-License-Identifier: Apache-2.0
//
// What the coordinator decides, and why. Time is simulated.
#include "ft/protocol/coordinator_script_testing.h"

#include <gmock/gmock.h>

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(Coordinator, TheFirstEpochWaitsForAllOrForItsTimeout) {
  CoordinatorScript all(options_of(1, 2));
  all.say(0);
  all.wait(kSettle);
  EXPECT_EQ(all.coordinator().stage(), EpochStage::kClosed);
  all.say(1);
  EXPECT_EQ(all.view(0).stage, EpochStage::kJoining);
  EXPECT_THAT(all.members(0), ElementsAre(0, 1));
  EXPECT_THAT(all.view(0).members[1].samples, ElementsAre(SampleRange{8, 16}));

  CoordinatorScript some(options_of(1, 2));
  some.say(0);
  some.wait(std::chrono::seconds(61));
  EXPECT_THAT(some.members(0), ElementsAre(0));
}

TEST(Coordinator, NobodyReducesBeforeAllHaveJoined) {
  CoordinatorScript script(options_of(1, 3));
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    script.say(replica);
  }
  script.wait(kSettle);
  script.join({0, 2});
  EXPECT_EQ(script.view(0).stage, EpochStage::kJoining);
  script.join({1});
  EXPECT_EQ(script.view(0).stage, EpochStage::kRunning);
}

TEST(Coordinator, WhoDoesNotJoinIsLeftOut) {
  CoordinatorScript script(options_of(2, 3));
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    script.say(replica);
  }
  script.wait(kSettle);
  script.join({0, 2});
  script.wait(kJoin);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2));
  EXPECT_THAT(
      script.reasons().back(), HasSubstr("replica 1 has not joined epoch 1.1"));
}

TEST(Coordinator, CommitsWhatAllHaveReduced) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.vote(0);
  EXPECT_EQ(script.view(0).canonical, kFirst);
  script.vote(1);
  EXPECT_EQ(script.view(0).canonical.step, 1);
  EXPECT_EQ(script.view(0).recent.back().base, kFirst);
  const auto& record = std::get<CommitRecord>(script.log().back());
  EXPECT_THAT(record.participants[1].samples, ElementsAre(SampleRange{8, 16}));
  // It is in the same epoch and gets the next samples.
  EXPECT_EQ(script.view(1).stage, EpochStage::kRunning);
  EXPECT_EQ(script.view(1).epoch, (Epoch{1, 1}));
  EXPECT_THAT(
      script.view(1).members[1].samples, ElementsAre(SampleRange{24, 32}));
}

TEST(Coordinator, TheOthersTakeOverAMissingReplicasShare) {
  auto options = options_of(1, 3);
  options.samples_in_all = 24;
  options.samples_multiple = 2;
  CoordinatorScript script(options);
  script.begin({0, 1, 2});
  EXPECT_EQ(script.view(0).members[2].samples[0].size(), 8);
  script.lose(1);
  script.wait(kSettle);
  // This step continues with the gradients that exist; the next one is full again.
  EXPECT_EQ(script.view(0).members[0].samples[0].size(), 8);
  script.join({0, 2});
  script.vote(0);
  script.vote(2);
  EXPECT_EQ(script.view(0).recent.back().samples, 16);
  EXPECT_THAT(
      script.view(0).members[0].samples,
      ElementsAre(SampleRange{8, 16}, SampleRange{24, 28}));
  EXPECT_THAT(
      script.view(0).members[1].samples, ElementsAre(SampleRange{28, 40}));
}

TEST(Coordinator, ADeathIsANewEpochOfTheSameStepAndSamples) {
  CoordinatorScript script(options_of(1, 3));
  script.begin({0, 1, 2});
  script.lose(1);
  EXPECT_EQ(script.view(0).stage, EpochStage::kClosed);
  script.wait(kSettle);
  EXPECT_EQ(script.view(0).epoch, (Epoch{1, 2}));
  EXPECT_THAT(script.members(0), ElementsAre(0, 2));
  EXPECT_THAT(
      script.view(0).members[1].samples, ElementsAre(SampleRange{16, 24}));
  EXPECT_THAT(script.reasons().back(), HasSubstr("replica 1 was lost"));
  script.join({0, 2});
  script.vote(0);
  script.vote(2);
  EXPECT_EQ(script.view(0).canonical.step, 1);
  // The samples of replica 1 are free again.
  EXPECT_THAT(
      script.view(0).members[0].samples, ElementsAre(SampleRange{8, 16}));
}

TEST(Coordinator, DifferentSumsAreNeverCommitted) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.vote(0, 5);
  script.vote(1, 6);
  EXPECT_EQ(script.view(0).canonical, kFirst);
  EXPECT_EQ(script.view(0).epoch, (Epoch{1, 2}));
  EXPECT_THAT(script.reasons().back(), HasSubstr("has another sum"));
}

TEST(Coordinator, BelowTheMinimumNothingIsCommitted) {
  CoordinatorScript script(options_of(2, 2));
  script.begin({0, 1});
  script.vote(0);
  script.lose(1);
  script.wait(kHold * 2);
  EXPECT_EQ(script.view(0).epoch, (Epoch{1, 1}));
  EXPECT_EQ(script.coordinator().stage(), EpochStage::kClosed);
  script.say(1);  // The same incarnation has reconnected.
  script.wait(kSettle);
  EXPECT_EQ(script.view(0).epoch, (Epoch{1, 2}));
}

TEST(Coordinator, WhoHungAndDoesSomethingElseDoesNotHang) {
  CoordinatorScript script(options_of(2, 2));
  script.begin({0, 1});
  script.report(1).progress.activity = Activity::kReducing;
  script.say(1);
  script.hang(1);
  script.wait(kSettle);
  EXPECT_EQ(script.coordinator().stage(), EpochStage::kClosed);
  // Nothing was reduced, so nothing was counted: the replica has only stopped waiting.
  script.report(1).progress.activity = Activity::kWaiting;
  script.say(1);
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0, 1));
}

TEST(Coordinator, WhoHasCaughtUpIsPlannedForAndStopsNobody) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.vote(0);
  script.vote(1);
  script.apply({0, 1});
  script.say(2);  // It has restarted and lacks one step.
  EXPECT_THAT(script.members(0), ElementsAre(0, 1));
  EXPECT_EQ(script.view(0).stage, EpochStage::kRunning);
  ASSERT_TRUE(script.view(0).planned.has_value());
  EXPECT_EQ(script.view(2).planned->members.size(), 3U);
  script.apply({2});  // It has caught up.
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    script.report(replica).joined = script.view(replica).planned->epoch;
    script.say(replica);
  }
  EXPECT_THAT(script.members(0), ElementsAre(0, 1));
  script.vote(0);
  script.vote(1);
  // The planned epoch begins with the commit and is running at once. A member that lacks the commit
  // follows without samples.
  EXPECT_EQ(script.view(2).canonical.step, 2);
  EXPECT_EQ(script.view(2).stage, EpochStage::kRunning);
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(script.view(0).members[2].samples, IsEmpty());
  EXPECT_THAT(
      script.view(0).members[0].samples, ElementsAre(SampleRange{32, 40}));
  script.apply({0, 1, 2});
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    script.vote(replica);
  }
  EXPECT_EQ(script.view(2).canonical.step, 3);
  EXPECT_THAT(
      script.view(2).members[2].samples, ElementsAre(SampleRange{64, 72}));
}

TEST(Coordinator, APlanThatIsNotJoinedIsDroppedForLongerEachTime) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.say(2);
  const auto first = script.view(0).planned->epoch;
  script.wait(kJoin);
  EXPECT_EQ(script.view(0).planned, std::nullopt);
  EXPECT_EQ(script.view(0).stage, EpochStage::kRunning);
  script.wait(kJoin);
  ASSERT_TRUE(script.view(0).planned.has_value());
  EXPECT_GT(script.view(0).planned->epoch, first);
  // The others commit even though it is planned as a member.
  script.vote(0);
  script.vote(1);
  EXPECT_EQ(script.view(0).canonical.step, 1);
  EXPECT_THAT(script.members(0), ElementsAre(0, 1));
}

TEST(Coordinator, AMemberThatLeavesCostsANewcomerNothing) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.say(2);
  ASSERT_TRUE(script.view(0).planned.has_value());
  script.report(1).leaving = true;
  script.say(1);
  script.vote(0);
  script.vote(1);
  script.apply({0, 1, 2});
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0));
  script.join({0});
  // It stays out for less time than a replica that could not join.
  EXPECT_TRUE(script.view(0).planned.has_value());
}

// Rings have room for two epochs.
TEST(Coordinator, PlansWhenAllHaveBegunWhatIsUnderWay) {
  CoordinatorScript script(options_of(1, 1));
  script.begin({0});
  script.say(1);
  script.join_plan({0, 1});
  script.say(2);
  script.vote(0);
  EXPECT_EQ(script.view(0).members.size(), 2U);
  EXPECT_FALSE(script.view(0).planned.has_value());
  script.apply({0});
  EXPECT_FALSE(script.view(0).planned.has_value());
  script.apply({1});
  ASSERT_TRUE(script.view(0).planned.has_value());
  EXPECT_EQ(script.view(0).planned->members.size(), 3U);
}

TEST(Coordinator, AnEpochThatAMemberHasLostBeforeItBeganEnds) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  const auto former = script.view(0).epoch;
  script.say(2);
  script.join_plan({0, 1, 2});
  script.vote(0);
  script.vote(1);
  ASSERT_GT(script.view(0).epoch, former);
  // It lost both at once and reports the one that it knew.
  script.report(1).joined = former;
  script.report(1).suspicion = Suspicion{former, 0, "connection reset"};
  script.say(1);
  EXPECT_EQ(script.view(0).stage, EpochStage::kClosed);
}

// One replica that has taken every sum votes at once, another one a moment later.
TEST(Coordinator, VotesProveACompleteSumWhoeverDies) {
  CoordinatorScript script(options_of(1, 3));
  script.begin({0, 1, 2});
  script.vote(0);
  script.lose(1);
  EXPECT_EQ(script.view(0).canonical, kFirst);
  script.wait(kSettle / 2);
  script.vote(2);
  // Its samples are in the sum, and 2 can fetch that from 0.
  EXPECT_EQ(script.view(2).canonical.step, 1);
  EXPECT_EQ(script.view(2).stage, EpochStage::kClosed);
  script.apply({0, 2});
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2));
  EXPECT_THAT(
      script.view(0).members[1].samples, ElementsAre(SampleRange{40, 48}));
}

// If the only holder died next, the step would be lost, and nothing would be committed for a
// minute.
TEST(Coordinator, OneHolderAloneCommitsNothingWhileAnotherMemberLives) {
  CoordinatorScript script(options_of(1, 3));
  script.begin({0, 1, 2});
  script.vote(0);
  script.lose(1);
  script.wait(kSettle);
  EXPECT_EQ(script.view(0).canonical, kFirst);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2));
  script.join({0, 2});
  script.vote(0);
  script.wait(kVote);
  EXPECT_EQ(script.view(0).canonical, kFirst);
  script.lose(2);  // No other replica can hold it now.
  EXPECT_EQ(script.view(0).canonical.step, 1);
}

TEST(Coordinator, WhoIsLateWithItsVoteIsNotWaitedForForever) {
  CoordinatorScript script(options_of(1, 3));
  script.begin({0, 1, 2});
  script.vote(0);
  script.vote(2);
  script.wait(kVote - kSettle);
  EXPECT_EQ(script.view(0).canonical, kFirst);
  script.wait(kSettle);
  EXPECT_EQ(script.view(0).canonical.step, 1);
  EXPECT_EQ(script.view(1).stage, EpochStage::kRunning);
  EXPECT_THAT(script.reasons().back(), HasSubstr("the others are late"));
}

TEST(Coordinator, WhoFailsItsPeersAgainStaysOutLongerUpToALimit) {
  auto options = options_of(1, 2);
  options.backoff = kJoin;
  options.backoff_max = 3 * kJoin;
  CoordinatorScript script(options);
  script.begin({0, 1});
  for (const auto out : {Duration(0), kJoin, 2 * kJoin, 3 * kJoin, 3 * kJoin}) {
    script.lose(1);
    script.wait(kSettle);
    EXPECT_THAT(script.members(0), ElementsAre(0));
    script.join({0});
    script.report(1).joined = {};
    script.report(1).held = script.view(0).canonical;
    script.say(1);
    script.wait(std::max(out - 2 * kSettle, Duration(0)));
    EXPECT_EQ(script.view(0).planned.has_value(), out == Duration(0));
    script.wait(2 * kSettle);
    ASSERT_TRUE(script.view(0).planned.has_value());
    for (const ReplicaId replica : {0U, 1U}) {
      script.report(replica).joined = script.view(0).planned->epoch;
      script.say(replica);
    }
    script.vote(0);
    script.apply({0, 1});
    EXPECT_THAT(script.members(0), ElementsAre(0, 1));
  }
}

// Making a view takes time proportional to the number of replicas, and each of them reports several
// times a step.
TEST(Coordinator, ReportsThatDecideNothingAreAnsweredWithTheViewThatThereIs) {
  CoordinatorScript script(options_of(3, 3));
  script.begin({0, 1, 2});
  script.vote(0);
  script.vote(1);
  EXPECT_EQ(&script.view(1), &script.view(0));
  script.vote(2);
  script.apply({0, 1});
  EXPECT_EQ(&script.view(1), &script.view(0));
  script.apply({2});  // All hold it.
  EXPECT_NE(&script.view(2), &script.view(0));
}

TEST(Coordinator, ReportsThatComeTogetherAreAnsweredOnce) {
  CoordinatorScript script(options_of(3, 3));
  script.say_together({0, 1, 2});
  EXPECT_EQ(script.views(), 0);  // Nothing has begun.
  script.wait(kSettle);
  script.join({0, 1, 2});
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    script.reduce(replica);
  }
  const auto before = script.views();
  script.say_together({0, 1, 2});
  EXPECT_EQ(script.view(2).canonical.step, 1);
  EXPECT_EQ(script.views(), before + 3);
}

// The result is the same as if they came one by one, with the accusation last.
TEST(Coordinator, AnAccusationThatComesWithTheLastVoteCostsNoStep) {
  CoordinatorScript script(options_of(2, 3));
  script.begin({0, 1, 2});
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    script.reduce(replica);
  }
  script.report(1).suspicion = Suspicion{script.view(1).epoch, 2, "dead", 1};
  script.say_together({1, 0, 2});
  EXPECT_EQ(script.view(0).canonical.step, 1);
  EXPECT_EQ(script.view(0).stage, EpochStage::kClosed);
}

TEST(Coordinator, MostMembersSayWhoseSumIsWrong) {
  CoordinatorScript script(options_of(1, 3));
  script.begin({0, 1, 2});
  script.vote(0, 5);
  script.vote(2, 5);
  script.vote(1, 6);
  EXPECT_EQ(script.view(0).canonical, kFirst);
  EXPECT_THAT(
      script.reasons().back(),
      HasSubstr("replica 1 has another sum of gradients than replica 0"));
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2));  // The first time.
  script.join({0, 1, 2});
  script.vote(0, 5);
  script.vote(1, 6);
  script.vote(2, 5);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2));
}

TEST(Coordinator, AVoteOfAnEarlierEpochDoesNotCount) {
  CoordinatorScript script(options_of(2, 2));
  script.begin({0, 1});
  script.vote(0);
  script.lose(1);
  script.say(1);
  script.wait(kSettle);
  ASSERT_EQ(script.view(0).epoch, (Epoch{1, 2}));
  script.report(0).joined = script.view(0).epoch;
  script.say(0);  // Its report still contains the former vote.
  script.join({1});
  script.vote(1);
  EXPECT_EQ(script.view(0).canonical, kFirst);
  script.vote(0);
  EXPECT_EQ(script.view(0).canonical.step, 1);
}

TEST(Coordinator, WhoLeavesFinishesItsStep) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.report(1).leaving = true;
  script.vote(1);
  EXPECT_EQ(script.view(0).epoch, (Epoch{1, 1}));
  script.vote(0);
  EXPECT_EQ(script.view(0).canonical.step, 1);
  script.apply({0, 1});
  EXPECT_EQ(script.view(0).epoch, (Epoch{1, 2}));
  EXPECT_THAT(script.members(0), ElementsAre(0));
}

TEST(Coordinator, ABrokenLinkIsANewEpochOfAll) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.report(0).suspicion = Suspicion{{1, 1}, 1, "connection reset"};
  script.say(0);
  script.wait(kSettle);
  EXPECT_EQ(script.view(0).epoch, (Epoch{1, 2}));
  EXPECT_THAT(script.members(0), ElementsAre(0, 1));
  EXPECT_THAT(
      script.reasons().back(),
      HasSubstr("replica 0 suspects replica 1: connection reset"));
  // Earlier suspicions no longer count.
  script.join({0, 1});
  EXPECT_EQ(script.view(0).stage, EpochStage::kRunning);
}

TEST(Coordinator, ANewerLifeFencesTheOlder) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  const auto old = script.report(1);
  script.report(1).incarnation = 777;
  script.report(1).joined = {};
  script.say(1);
  EXPECT_EQ(script.view(1).fenced, "");
  script.report(1) = old;
  script.say(1);
  EXPECT_THAT(script.view(1).fenced, HasSubstr("replaced by a newer one"));
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0));
  script.join({0});
  EXPECT_EQ(script.view(0).planned->members[1].incarnation, 777U);
}

// Starting one of them again would only replace the other one.
TEST(Coordinator, OneNumberOnTwoHostsIsRefusedForGoodWithBothHosts) {
  CoordinatorScript script(options_of(1, 2));
  script.report(1).addresses = {RankAddress{"10.0.0.2", 1, 2}};
  script.begin({0, 1});
  const auto old = script.report(1);
  script.report(1).incarnation = 777;
  script.report(1).joined = {};
  script.report(1).addresses = {RankAddress{"10.0.0.3", 1, 2}};
  script.say(1);
  script.report(1) = old;
  script.say(1);
  const auto& fenced = script.view(1).fenced;
  EXPECT_THAT(
      fenced,
      HasSubstr("expected SHERD_REPLICA 1 on one host only, found it on "
                "10.0.0.2 and 10.0.0.3: incarnation 101 of replica 1 was "
                "replaced by a newer one"));
  EXPECT_TRUE(is_final_refusal(fenced));
  script.report(1) = old;
  script.report(1).addresses = {RankAddress{"10.0.0.3", 3, 4}};
  script.say(1);
  EXPECT_THAT(
      script.view(1).fenced, StartsWith("incarnation 101 of replica 1"));
  EXPECT_FALSE(is_final_refusal(script.view(1).fenced));
}

TEST(Coordinator, WhoHangsIsLeftOutAndStillHoldsWhatItHolds) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.hang(1);
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0));
  // It learns of the epoch.
  EXPECT_EQ(script.view(1).epoch, script.view(0).epoch);
  script.join({0});
  script.vote(0);
  script.apply({0, 1});
  script.hang(0);
  script.lose(1);
  script.report(2).held = kFirst;
  script.say(2);
  script.wait(kHold * 2);
  // A replica that hangs may wake up.
  EXPECT_EQ(script.coordinator().history().canonical->step, 1);
  script.report(0).progress.serial = 1;
  script.say(0);
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0));
}

TEST(Coordinator, ALinkThatFailsAgainAndAgainCostsItsEndAPlace) {
  CoordinatorScript script(options_of(1, 3));
  script.begin({0, 1, 2});
  for (int times = 0; times < 4; ++times) {
    const auto epoch = script.view(0).epoch;
    script.report(0).suspicion = Suspicion{epoch, 1, "checksum"};
    script.say(0);
    script.wait(kSettle);
    script.join({0, 1, 2});
  }
  EXPECT_THAT(script.members(0), ElementsAre(0, 2));
}

TEST(Coordinator, ADeathThatAllNoticeIsOneSuspicion) {
  CoordinatorScript script(options_of(1, 4));
  script.begin({0, 1, 2, 3});
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    script.report(replica).suspicion = Suspicion{{1, 1}, 3, "connection reset"};
    script.say(replica);
  }
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2, 3));
}

// Its peers report it before its connection ends; it stays out all the same.
TEST(Coordinator, ADeathThatPeersNoticeFirstIsADeathToo) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  for (const bool again : {false, true}) {
    script.report(0).suspicion =
        Suspicion{script.view(0).epoch, 1, "connection reset"};
    script.say(0);
    script.lose(1);
    script.report(0).suspicion = {};
    script.wait(kSettle);
    script.join({0});
    script.report(1).joined = {};
    script.report(1).held = script.view(0).canonical;
    script.say(1);
    EXPECT_EQ(script.view(0).planned.has_value(), !again);
    if (!again) {
      for (const ReplicaId replica : {0U, 1U}) {
        script.report(replica).joined = script.view(0).planned->epoch;
        script.say(replica);
      }
      script.vote(0);
      script.apply({0, 1});
    }
  }
}

TEST(Coordinator, OtherFirstValuesAreFetchedOver) {
  CoordinatorScript script(options_of(1, 1));
  script.begin({0});
  script.report(1).run = 1;
  script.report(1).held = StateId{0, {9, 9}};
  script.say(1);
  EXPECT_EQ(script.coordinator().complaint(), "");
  EXPECT_THAT(script.members(0), ElementsAre(0));
}

TEST(Coordinator, AReplicaThatIsDoneHasEndedAndWasNotLost) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.vote(0);
  script.vote(1);
  script.report(1).finished = true;
  script.apply({0, 1});
  script.lose(1);
  script.wait(kSettle);
  EXPECT_THAT(
      script.reasons().back(), HasSubstr("replica 1 has ended with step 1"));
}

TEST(Coordinator, RefusesStrangers) {
  CoordinatorScript script(options_of(1, 1));
  script.begin({0});
  const auto fenced = [&](ReplicaId replica) {
    script.say(replica);
    return script.view(replica).fenced;
  };
  script.report(1).run = 99;
  EXPECT_EQ(fenced(1), "this is run 1, the replica is of run 99");
  EXPECT_FALSE(is_final_refusal(fenced(1)));
  script.report(2).config = 10;
  EXPECT_THAT(
      fenced(2),
      HasSubstr("expected the configuration 9 of the other replicas"));
  EXPECT_TRUE(is_final_refusal(fenced(2)));
  EXPECT_EQ(fenced(4096), "expected a replica below 4096, found 4096");
  EXPECT_TRUE(is_final_refusal(fenced(4096)));
  EXPECT_THAT(script.members(0), ElementsAre(0));
}

// The configuration of the first replica is that of the run, and 0 is that of none yet.
TEST(Coordinator, RefusesAConfigurationOf0AndGoesOnWithTheOthers) {
  CoordinatorScript script(options_of(1, 2));
  script.report(2).config = 0;
  script.say(2);
  EXPECT_THAT(
      script.view(2).fenced,
      HasSubstr("expected a life and a configuration other than 0"));
  script.begin({0, 1});
  EXPECT_THAT(script.members(0), ElementsAre(0, 1));
  script.say(2);
  script.vote(0);
  script.vote(1);
  EXPECT_EQ(script.view(0).canonical.step, 1);
}

TEST(Coordinator, AReportThatWasOvertakenChangesNothing) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.report(0).serial = 7;
  script.vote(0);
  const auto voted = script.report(0);
  script.report(0).serial = 6;
  script.report(0).held.reset();
  script.report(0).vote.reset();
  script.say(0);
  EXPECT_EQ(script.view(1).stage, EpochStage::kRunning);
  script.report(0) = voted;
  script.vote(1);
  EXPECT_EQ(script.coordinator().history().canonical->step, 1);
}

}  // namespace
}  // namespace sherd::ft
