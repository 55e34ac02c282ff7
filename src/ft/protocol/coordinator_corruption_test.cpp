// SPDX-License-Identifier: Apache-2.0
//
// What the coordinator decides about wrong bits.
#include <gmock/gmock.h>

#include "ft/protocol/coordinator_script_testing.h"

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- sums ----

TEST(Detectors, ASumThatDiffersFromMostIsShownWithItsCulprit) {
  CoordinatorScript script(options_of(1, 3));
  script.begin({0, 1, 2});
  script.vote(0, 5);
  script.vote(1, 6);
  script.vote(2, 5);
  EXPECT_THAT(
      script.notices(),
      ElementsAre(
          HasSubstr("wrong_sums replica 1: replica 1 has another sum")));
  // Everything is repeated once: a bit may flip anywhere.
  EXPECT_EQ(script.view(0).canonical, kFirst);
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2));
}

TEST(Detectors, SumsThatDifferAgainAndAgainStopTheRun) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  for (int i = 0; i < 8; ++i) {
    script.vote(0, 5);
    script.vote(1, 6);
    script.join({0, 1});
    EXPECT_THAT(script.coordinator().complaint(), IsEmpty());
  }
  script.vote(0, 5);
  script.vote(1, 6);
  EXPECT_THAT(
      script.coordinator().complaint(), HasSubstr("no majority says whose"));
}

// ---- states ----

void digest(CoordinatorScript& script, ReplicaId replica, std::uint64_t value) {
  auto& report = script.report(replica);
  report.held = script.view(replica).canonical;
  report.digest = StateDigest{*report.held, value};
  report.vote.reset();
  script.say(replica);
}

CoordinatorScript after_a_step(
    const CoordinatorOptions& options, ReplicaId replicas) {
  CoordinatorScript script(options);
  for (ReplicaId one = 0; one < replicas; ++one) {
    script.say(one);
  }
  script.wait(kSettle);
  for (ReplicaId one = 0; one < replicas; ++one) {
    script.join({one});
  }
  for (ReplicaId one = 0; one < replicas; ++one) {
    script.vote(one);
  }
  return script;
}

TEST(Detectors, WhoHoldsOtherBitsThanMostIsToldAndLeftOut) {
  auto script = after_a_step(options_of(1, 3), 3);
  digest(script, 0, 7);
  digest(script, 1, 8);
  EXPECT_EQ(script.coordinator().stage(), EpochStage::kRunning);
  digest(script, 2, 7);
  EXPECT_THAT(
      script.notices(),
      ElementsAre(HasSubstr("wrong_states replica 1: its bits "
                            "at step 1")));
  EXPECT_EQ(script.view(1).wrong, script.report(1).digest);
  EXPECT_EQ(script.view(0).wrong, std::nullopt);
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2));
  EXPECT_EQ(script.view(0).canonical.step, 1);
  // Nobody fetches from it.
  EXPECT_EQ(script.view(0).peers.size(), 0U);  // The script has no addresses.
  // A repeated report does not blame it twice.
  script.say(1);
  EXPECT_EQ(script.notices().size(), 1U);
}

TEST(Detectors, WhatWasReducedFromWrongBitsIsNotCommitted) {
  auto script = after_a_step(options_of(1, 3), 3);
  digest(script, 0, 7);
  digest(script, 1, 8);
  script.vote(0);
  script.vote(1);
  digest(script, 2, 7);
  EXPECT_EQ(script.view(0).canonical.step, 1);
  script.wait(kSettle);
  EXPECT_EQ(script.view(0).canonical.step, 1);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2));
}

TEST(Detectors, WhoHasDroppedItsBitsComesBack) {
  auto script = after_a_step(options_of(1, 3), 3);
  digest(script, 0, 7);
  digest(script, 2, 7);
  digest(script, 1, 8);
  script.wait(kSettle);
  script.join({0, 2});
  script.report(1).held.reset();
  script.report(1).digest.reset();
  script.say(1);
  EXPECT_EQ(script.view(1).wrong, std::nullopt);
  script.report(1).held = script.view(1).canonical;
  script.say(1);
  script.join({0, 2});
  ASSERT_TRUE(script.view(0).planned.has_value());
  EXPECT_EQ(script.view(0).planned->members.size(), 3U);
}

TEST(Detectors, TwoThatDifferStopTrainingUntilOneIsEnded) {
  auto script = after_a_step(options_of(1, 2), 2);
  digest(script, 0, 7);
  digest(script, 1, 8);
  EXPECT_THAT(script.coordinator().complaint(), HasSubstr("no majority"));
  EXPECT_THAT(script.notices(), ElementsAre(HasSubstr("different bits")));
  script.wait(kHold * 2);
  EXPECT_EQ(script.coordinator().stage(), EpochStage::kClosed);
  script.lose(1);
  EXPECT_THAT(script.coordinator().complaint(), IsEmpty());
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0));
  // It was only disconnected and still has the same bits.
  script.say(1);
  EXPECT_TRUE(script.view(1).wrong.has_value());
  EXPECT_THAT(script.coordinator().complaint(), IsEmpty());
}

TEST(Detectors, OfTwoThatDifferTheOneThatIsAskedToLeaveIsWrong) {
  auto script = after_a_step(options_of(1, 2), 2);
  digest(script, 0, 7);
  digest(script, 1, 8);
  for (const ReplicaId replica :
       {0U, 1U}) {  // Nobody else holds the second state.
    script.report(replica).leaving = true;
    script.say(replica);
  }
  EXPECT_TRUE(script.view(0).wrong.has_value());
  EXPECT_FALSE(script.view(1).wrong.has_value());
  EXPECT_THAT(script.coordinator().complaint(), IsEmpty());
}

TEST(Detectors, WhoStillCopiesIsNoWitnessToWaitFor) {
  auto script = after_a_step(options_of(1, 2), 2);
  script.say(2);  // It holds the initial state.
  digest(script, 0, 7);
  digest(script, 1, 8);
  EXPECT_THAT(script.coordinator().complaint(), HasSubstr("no majority"));
}

// ---- gradients ----

void stop_run(CoordinatorScript& script, ReplicaId replica, bool stop = false) {
  auto& report = script.report(replica);
  for (const auto& member : script.view(replica).members) {
    if (member.replica == replica) {
      report.bad_gradients = BadGradients{
          script.view(replica).canonical, member.samples, {"nan", stop}};
    }
  }
  script.say(replica);
}

TEST(Detectors, AStepIsMadeWithoutBadGradientsAndTakesTheirSamples) {
  CoordinatorScript script(options_of(1, 3));
  script.begin({0, 1, 2});
  stop_run(script, 1);
  script.wait(kSettle);
  const auto& members = script.view(0).members;
  EXPECT_EQ(script.view(0).epoch, (Epoch{1, 2}));
  // The others have all samples they need.
  EXPECT_THAT(members[0].samples, ElementsAre(SampleRange{0, 8}));
  EXPECT_THAT(members[2].samples, ElementsAre(SampleRange{16, 24}));
  EXPECT_THAT(members[1].samples, IsEmpty());
  EXPECT_THAT(members[1].left_out, ElementsAre(SampleRange{8, 16}));
  script.report(1).bad_gradients.reset();
  script.join({0, 1, 2});
  for (const ReplicaId one : {0U, 1U, 2U}) {
    script.vote(one);
  }
  const auto& record = std::get<CommitRecord>(script.log().back());
  EXPECT_EQ(record.commit.samples, 16);
  EXPECT_THAT(record.participants[1].left_out, ElementsAre(SampleRange{8, 16}));
  EXPECT_THAT(script.notices(), ElementsAre("bad_gradients replica 1: nan"));
  // It trains again, on samples that come later.
  EXPECT_THAT(
      script.view(1).members[1].samples, ElementsAre(SampleRange{32, 40}));
  EXPECT_THAT(script.view(1).members[1].left_out, IsEmpty());
  EXPECT_EQ(script.coordinator().history().consumed.size(), 24);
}

TEST(Detectors, ANewTermKnowsWhatIsLeftOut) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  stop_run(script, 1);
  script.wait(kSettle);
  History history;
  for (const auto& record : script.log()) {
    append(history, record);
  }
  CoordinatorScript next(options_of(1, 2), history);
  next.report(0).run = next.report(1).run = history.run;
  next.begin({0, 1});
  EXPECT_THAT(
      next.view(0).members[1].left_out, ElementsAre(SampleRange{8, 16}));
}

TEST(Detectors, WhereAllAreBadOthersSamplesAreTriedAndThenTheRunStops) {
  CoordinatorScript script(options_of(1, 1));
  script.begin({0});
  for (std::int64_t i = 0; i < 3; ++i) {
    stop_run(script, 0);
    script.wait(kSettle);
    EXPECT_THAT(
        script.view(0).members[0].samples,
        ElementsAre(SampleRange{8 * (i + 1), 8 * (i + 2)}));
    EXPECT_THAT(script.coordinator().complaint(), IsEmpty());
    script.join({0});
  }
  stop_run(script, 0);
  script.wait(std::chrono::seconds(2));
  EXPECT_THAT(
      script.coordinator().complaint(), HasSubstr("nobody's gradients are of"));
}

// A replica reports them until it is a member again and has other samples.
TEST(Detectors, BadGradientsOfAnEarlierEpochDoNotStopTheRun) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  stop_run(script, 1);
  script.wait(kSettle);
  for (int times = 0; times < 5; ++times) {
    script.lose(1);
    script.wait(2 * kHold);
    EXPECT_THAT(script.members(0), ElementsAre(0));
    script.lose(0);
    script.say(1);
    script.wait(2 * kHold);
    EXPECT_THAT(script.members(1), ElementsAre(1));
    script.say(0);
  }
  EXPECT_THAT(script.coordinator().complaint(), IsEmpty());
}

TEST(Detectors, WhoIsBadEachTimeGivesItsSamplesToOthers) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.wait(std::chrono::minutes(10));  // It has been healthy for long.
  for (int i = 0; i < 3; ++i) {
    stop_run(script, 1);
    script.wait(kSettle);
    EXPECT_THAT(script.members(0), ElementsAre(0, 1));
    script.report(1).bad_gradients.reset();
    script.join({0, 1});
    script.vote(0);
    script.vote(1);
    script.apply({0, 1});
  }
  const auto samples = script.view(1).members[1].samples;
  stop_run(script, 1);
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0));
  script.join({0});
  script.vote(0);
  EXPECT_EQ(script.view(0).members[0].samples, samples);
}

TEST(Detectors, ThePolicyMayStopTheRun) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  stop_run(script, 1, true);
  EXPECT_THAT(
      script.coordinator().complaint(),
      HasSubstr("replica 1 has gradients of no use for step 1: nan"));
  script.wait(kHold);
  EXPECT_EQ(script.coordinator().stage(), EpochStage::kClosed);
}

TEST(Detectors, ThePolicyMayStopTheRunAfterAMilderFaultOfTheSameGradients) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  stop_run(script, 1);
  EXPECT_THAT(script.coordinator().complaint(), IsEmpty());
  script.report(1).bad_gradients->fault.stop = true;
  script.say(1);
  EXPECT_THAT(
      script.coordinator().complaint(), HasSubstr("replica 1 has gradients"));
}

// Another rank of the replica has found the fault later.
TEST(Detectors, ThePolicyMayStopTheRunWhenTheSamplesAreLeftOut) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  stop_run(script, 1);
  script.wait(kSettle);
  EXPECT_THAT(script.view(1).members[1].samples, IsEmpty());
  stop_run(script, 1, true);
  EXPECT_THAT(
      script.coordinator().complaint(), HasSubstr("replica 1 has gradients"));
}

// ---- hanging replicas ----

TEST(Detectors, ANewLifeDoesNotHangAsTheOldOneDid) {
  CoordinatorScript script(options_of(2, 2));
  script.begin({0, 1});
  script.hang(1);
  EXPECT_EQ(script.coordinator().stage(), EpochStage::kClosed);
  script.lose(1);
  script.report(1).incarnation += 10;
  script.say(1);
  script.wait(std::chrono::seconds(2));
  EXPECT_THAT(script.members(0), ElementsAre(0, 1));
}

TEST(Detectors, AReductionThatIsGivenUpIsNoProgressOfOneThatHangs) {
  CoordinatorScript script(options_of(1, 2));
  script.begin({0, 1});
  script.report(1).progress.activity = Activity::kComputing;
  script.report(1).progress.serial = 9;
  script.say(1);
  script.hang(1);
  script.report(1).progress.serial = 8;
  script.say(1);
  script.wait(std::chrono::seconds(2));
  EXPECT_THAT(script.members(0), ElementsAre(0));
  script.join({0});
  EXPECT_FALSE(script.view(0).planned.has_value());
  script.report(1).progress.serial = 9;
  script.say(1);
  EXPECT_TRUE(script.view(0).planned.has_value());
}

}  // namespace
}  // namespace sherd::ft
