// SPDX-License-Identifier: Apache-2.0
//
// What the coordinator decides about wrong bits.
#include <gmock/gmock.h>

#include "ft/protocol/coordinator_play_testing.h"

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- sums ----

TEST(Detectors, ASumThatDiffersFromMostIsShownWithItsCulprit) {
  Play play(options_of(1, 3));
  play.begin({0, 1, 2});
  play.vote(0, 5);
  play.vote(1, 6);
  play.vote(2, 5);
  EXPECT_THAT(
      play.notices(),
      ElementsAre(
          HasSubstr("wrong_sums replica 1: replica 1 has another sum")));
  // All of them once more: a bit may flip anywhere.
  EXPECT_EQ(play.order(0).canonical, kFirst);
  EXPECT_THAT(play.members(0), ElementsAre(0, 1, 2));
}

TEST(Detectors, SumsThatDifferAgainAndAgainStopTheRun) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  for (int i = 0; i < 8; ++i) {
    play.vote(0, 5);
    play.vote(1, 6);
    play.join({0, 1});
    EXPECT_THAT(play.coordinator().complaint(), IsEmpty());
  }
  play.vote(0, 5);
  play.vote(1, 6);
  EXPECT_THAT(
      play.coordinator().complaint(), HasSubstr("no majority says whose"));
}

// ---- states ----

void digest(Play& play, ReplicaId replica, std::uint64_t value) {
  auto& report = play.report(replica);
  report.held = play.order(replica).canonical;
  report.digest = StateDigest{*report.held, value};
  report.vote.reset();
  play.say(replica);
}

Play after_a_step(const CoordinatorOptions& options, ReplicaId replicas) {
  Play play(options);
  for (ReplicaId one = 0; one < replicas; ++one) {
    play.say(one);
  }
  play.wait(kSettle);
  for (ReplicaId one = 0; one < replicas; ++one) {
    play.join({one});
  }
  for (ReplicaId one = 0; one < replicas; ++one) {
    play.vote(one);
  }
  return play;
}

TEST(Detectors, WhoHoldsOtherBitsThanMostIsToldAndLeftOut) {
  auto play = after_a_step(options_of(1, 3), 3);
  digest(play, 0, 7);
  digest(play, 1, 8);
  EXPECT_EQ(play.coordinator().phase(), Coordinator::Phase::kRunning);
  digest(play, 2, 7);
  EXPECT_THAT(
      play.notices(),
      ElementsAre(HasSubstr("wrong_states replica 1: its bits "
                            "at step 1")));
  EXPECT_EQ(play.order(1).wrong, play.report(1).digest);
  EXPECT_EQ(play.order(0).wrong, std::nullopt);
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0, 2));
  EXPECT_EQ(play.order(0).canonical.step, 1);
  // Nobody fetches from it.
  EXPECT_EQ(play.order(0).peers.size(), 0U);  // Plays have no addresses.
  // Said again, it is blamed once.
  play.say(1);
  EXPECT_EQ(play.notices().size(), 1U);
}

TEST(Detectors, WhatWasReducedFromWrongBitsIsNotCommitted) {
  auto play = after_a_step(options_of(1, 3), 3);
  digest(play, 0, 7);
  digest(play, 1, 8);
  play.vote(0);
  play.vote(1);
  digest(play, 2, 7);
  EXPECT_EQ(play.order(0).canonical.step, 1);
  play.wait(kSettle);
  EXPECT_EQ(play.order(0).canonical.step, 1);
  EXPECT_THAT(play.members(0), ElementsAre(0, 2));
}

TEST(Detectors, WhoHasDroppedItsBitsComesBack) {
  auto play = after_a_step(options_of(1, 3), 3);
  digest(play, 0, 7);
  digest(play, 2, 7);
  digest(play, 1, 8);
  play.wait(kSettle);
  play.join({0, 2});
  play.report(1).held.reset();
  play.report(1).digest.reset();
  play.say(1);
  EXPECT_EQ(play.order(1).wrong, std::nullopt);
  play.report(1).held = play.order(1).canonical;
  play.say(1);
  play.join({0, 2});
  ASSERT_TRUE(play.order(0).planned.has_value());
  EXPECT_EQ(play.order(0).planned->members.size(), 3U);
}

TEST(Detectors, TwoThatDifferStopTrainingUntilOneIsEnded) {
  auto play = after_a_step(options_of(1, 2), 2);
  digest(play, 0, 7);
  digest(play, 1, 8);
  EXPECT_THAT(play.coordinator().complaint(), HasSubstr("no majority"));
  EXPECT_THAT(play.notices(), ElementsAre(HasSubstr("different bits")));
  play.wait(kHold * 2);
  EXPECT_EQ(play.coordinator().phase(), Coordinator::Phase::kForming);
  play.lose(1);
  EXPECT_THAT(play.coordinator().complaint(), IsEmpty());
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0));
  // It was only cut off, and has the same bits still.
  play.say(1);
  EXPECT_TRUE(play.order(1).wrong.has_value());
  EXPECT_THAT(play.coordinator().complaint(), IsEmpty());
}

TEST(Detectors, OfTwoThatDifferTheOneThatIsAskedToLeaveIsWrong) {
  auto play = after_a_step(options_of(1, 2), 2);
  digest(play, 0, 7);
  digest(play, 1, 8);
  for (const ReplicaId replica :
       {0U, 1U}) {  // Of the second there is no other.
    play.report(replica).leaving = true;
    play.say(replica);
  }
  EXPECT_TRUE(play.order(0).wrong.has_value());
  EXPECT_FALSE(play.order(1).wrong.has_value());
  EXPECT_THAT(play.coordinator().complaint(), IsEmpty());
}

TEST(Detectors, WhoStillCopiesIsNoWitnessToWaitFor) {
  auto play = after_a_step(options_of(1, 2), 2);
  play.say(2);  // Holds the first values.
  digest(play, 0, 7);
  digest(play, 1, 8);
  EXPECT_THAT(play.coordinator().complaint(), HasSubstr("no majority"));
}

// ---- gradients ----

void complain(Play& play, ReplicaId replica, bool stop = false) {
  auto& report = play.report(replica);
  for (const auto& member : play.order(replica).members) {
    if (member.replica == replica) {
      report.bad_gradients = BadGradients{
          play.order(replica).canonical, member.samples, {"nan", stop}};
    }
  }
  play.say(replica);
}

TEST(Detectors, AStepIsMadeWithoutBadGradientsAndTakesTheirSamples) {
  Play play(options_of(1, 3));
  play.begin({0, 1, 2});
  complain(play, 1);
  play.wait(kSettle);
  const auto& members = play.order(0).members;
  EXPECT_EQ(play.order(0).epoch, (Epoch{1, 2}));
  // The others have what they need.
  EXPECT_THAT(members[0].samples, ElementsAre(SampleRange{0, 8}));
  EXPECT_THAT(members[2].samples, ElementsAre(SampleRange{16, 24}));
  EXPECT_THAT(members[1].samples, IsEmpty());
  EXPECT_THAT(members[1].left_out, ElementsAre(SampleRange{8, 16}));
  play.report(1).bad_gradients.reset();
  play.join({0, 1, 2});
  for (const ReplicaId one : {0U, 1U, 2U}) {
    play.vote(one);
  }
  const auto& record = std::get<CommitRecord>(play.log().back());
  EXPECT_EQ(record.commit.samples, 16);
  EXPECT_THAT(record.participants[1].left_out, ElementsAre(SampleRange{8, 16}));
  EXPECT_THAT(play.notices(), ElementsAre("bad_gradients replica 1: nan"));
  // It trains again, of samples that come after.
  EXPECT_THAT(
      play.order(1).members[1].samples, ElementsAre(SampleRange{32, 40}));
  EXPECT_THAT(play.order(1).members[1].left_out, IsEmpty());
  EXPECT_EQ(play.coordinator().history().consumed.size(), 24);
}

TEST(Detectors, ANewTermKnowsWhatIsLeftOut) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  complain(play, 1);
  play.wait(kSettle);
  History history;
  for (const auto& record : play.log()) {
    append(history, record);
  }
  Play next(options_of(1, 2), history);
  next.report(0).run = next.report(1).run = history.run;
  next.begin({0, 1});
  EXPECT_THAT(
      next.order(0).members[1].left_out, ElementsAre(SampleRange{8, 16}));
}

TEST(Detectors, WhereAllAreBadOthersSamplesAreTriedAndThenTheRunStops) {
  Play play(options_of(1, 1));
  play.begin({0});
  for (std::int64_t i = 0; i < 3; ++i) {
    complain(play, 0);
    play.wait(kSettle);
    EXPECT_THAT(
        play.order(0).members[0].samples,
        ElementsAre(SampleRange{8 * (i + 1), 8 * (i + 2)}));
    EXPECT_THAT(play.coordinator().complaint(), IsEmpty());
    play.join({0});
  }
  complain(play, 0);
  play.wait(std::chrono::seconds(2));
  EXPECT_THAT(
      play.coordinator().complaint(), HasSubstr("nobody's gradients are of"));
}

TEST(Detectors, WhoIsBadEachTimeGivesItsSamplesToOthers) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.wait(std::chrono::minutes(10));  // It has been well for long.
  for (int i = 0; i < 3; ++i) {
    complain(play, 1);
    play.wait(kSettle);
    EXPECT_THAT(play.members(0), ElementsAre(0, 1));
    play.report(1).bad_gradients.reset();
    play.join({0, 1});
    play.vote(0);
    play.vote(1);
    play.apply({0, 1});
  }
  const auto samples = play.order(1).members[1].samples;
  complain(play, 1);
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0));
  play.join({0});
  play.vote(0);
  EXPECT_EQ(play.order(0).members[0].samples, samples);
}

TEST(Detectors, ThePolicyMayStopTheRun) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  complain(play, 1, true);
  EXPECT_THAT(
      play.coordinator().complaint(),
      HasSubstr("replica 1 has gradients of no use for step 1: nan"));
  play.wait(kHold);
  EXPECT_EQ(play.coordinator().phase(), Coordinator::Phase::kForming);
}

// ---- who hangs ----

TEST(Detectors, ANewLifeDoesNotHangAsTheOldOneDid) {
  Play play(options_of(2, 2));
  play.begin({0, 1});
  play.hang(1);
  EXPECT_EQ(play.coordinator().phase(), Coordinator::Phase::kForming);
  play.lose(1);
  play.report(1).incarnation += 10;
  play.say(1);
  play.wait(std::chrono::seconds(2));
  EXPECT_THAT(play.members(0), ElementsAre(0, 1));
}

TEST(Detectors, AReductionThatIsGivenUpIsNoProgressOfOneThatHangs) {
  Play play(options_of(1, 2));
  play.begin({0, 1});
  play.report(1).progress.activity = Activity::kComputing;
  play.report(1).progress.serial = 9;
  play.say(1);
  play.hang(1);
  play.report(1).progress.serial = 8;
  play.say(1);
  play.wait(std::chrono::seconds(2));
  EXPECT_THAT(play.members(0), ElementsAre(0));
  play.join({0});
  EXPECT_FALSE(play.order(0).planned.has_value());
  play.report(1).progress.serial = 9;
  play.say(1);
  EXPECT_TRUE(play.order(0).planned.has_value());
}

}  // namespace
}  // namespace sherd::ft
