// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/failure_detector.h"

#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::ft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Three replicas that send a heartbeat every 250 ms.
class Watched : public ::testing::Test {
 protected:
  void says(
      ReplicaId replica,
      Activity activity,
      std::uint64_t serial,
      std::optional<ReplicaId> waits_for = {}) {
    said_[replica] = {activity, serial, waits_for};
  }
  // Lets time pass with heartbeats; returns all findings.
  std::vector<Finding> pass(Duration duration) {
    std::vector<Finding> all;
    for (const Instant end = now_ + duration; now_ < end;) {
      for (const auto& [replica, progress] : said_) {
        Report report;
        report.replica = replica;
        report.incarnation = 1;
        report.held = StateId{held_, {}};
        report.progress = progress;
        report.ranks = ranks_[replica];
        watch_.received(report, now_);
      }
      now_ += milliseconds(250);
      for (auto& one : watch_.tick(now_)) {
        all.push_back(one);
      }
    }
    return all;
  }
  // Passes this many steps of a second each, in which all replicas compute.
  void pass_steps(int count) {
    for (int i = 0; i < count; ++i) {
      ++serial_;
      for (ReplicaId replica = 0; replica < 3; ++replica) {
        says(replica, Activity::kComputing, serial_);
      }
      EXPECT_THAT(pass(milliseconds(750)), IsEmpty());
      ++serial_;
      for (ReplicaId replica = 0; replica < 3; ++replica) {
        says(replica, Activity::kReducing, serial_);
      }
      EXPECT_THAT(pass(milliseconds(250)), IsEmpty());
    }
  }

  FailureDetector watch_{FailureDetectorOptions()};
  // Neighbours are in a ring in the order of their numbers.
  void says_rank(
      ReplicaId replica,
      const TrainingProgress& progress,
      std::uint32_t frames_in,
      std::uint32_t frames_out) {
    auto rank = progress;
    rank.place = RingPosition{
        .epoch = {1, 1},
        .links = {
            {.peer = (replica + 2) % 3, .frames_in = frames_in},
            {.peer = (replica + 1) % 3, .frames_out = frames_out}}};
    ranks_[replica] = {rank};
  }
  std::vector<Finding> hangs_in(Duration duration) {
    std::vector<Finding> hung;
    for (const auto& one : pass(duration)) {
      if (one.kind == Finding::Kind::kHung) {
        hung.push_back(one);
      }
    }
    return hung;
  }
  // All replicas reduce and wait for the one before them.
  void wait_in_a_circle() {
    ++serial_;
    for (ReplicaId replica = 0; replica < 3; ++replica) {
      says(replica, Activity::kReducing, serial_, (replica + 2) % 3);
    }
  }

  std::map<ReplicaId, TrainingProgress> said_;
  std::map<ReplicaId, std::vector<TrainingProgress>> ranks_;
  std::uint64_t serial_ = 0;
  std::int64_t held_ = 0;  // The state that all of them hold.
  Instant now_ = seconds(100);
};

TEST_F(Watched, ASilentOneIsFoundOnceAfterItsTime) {
  pass_steps(1);
  said_.erase(1);
  EXPECT_THAT(pass(milliseconds(500)), IsEmpty());
  const auto found = pass(seconds(3));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Finding::Kind::kSilent);
  EXPECT_EQ(found[0].replica, 1U);
  EXPECT_THAT(found[0].reason, HasSubstr("nothing was heard for 1.2 s"));
}

TEST_F(Watched, OneThatEndedIsNotMissed) {
  pass_steps(1);
  said_.erase(1);
  watch_.ended(1, 1);
  EXPECT_THAT(pass(seconds(3)), IsEmpty());
}

TEST_F(Watched, AFormerLifeThatComesAndGoesHidesNobody) {
  pass_steps(6);
  Report former;
  former.replica = 1;
  former.incarnation = 9;
  watch_.received(former, now_);
  watch_.ended(1, 9);
  ++serial_;
  says(0, Activity::kReducing, serial_, 1);
  says(1, Activity::kComputing, serial_);
  says(2, Activity::kReducing, serial_, 1);
  // It has more time than a replica that waits for it.
  EXPECT_THAT(hangs_in(seconds(6)), IsEmpty());
}

TEST_F(Watched, OneThatPausesForHalfTheTimeIsNotFound) {
  pass_steps(1);
  const auto said = said_;
  said_.clear();
  EXPECT_THAT(pass(milliseconds(500)), IsEmpty());
  said_ = said;
  EXPECT_THAT(pass(milliseconds(500)), IsEmpty());
}

TEST_F(Watched, OfAChainOfThoseThatWaitTheLastHangs) {
  pass_steps(6);
  ++serial_;
  says(0, Activity::kReducing, serial_, 1);
  says(1, Activity::kReducing, serial_, 2);
  says(2, Activity::kReducing, serial_);
  EXPECT_THAT(pass(milliseconds(500)), IsEmpty());
  std::vector<Finding> hung;
  for (const auto& one : pass(seconds(20))) {
    if (one.kind == Finding::Kind::kHung) {
      hung.push_back(one);
    }
  }
  ASSERT_THAT(hung, SizeIs(1));
  EXPECT_EQ(hung[0].replica, 2U);
  EXPECT_THAT(hung[0].reason, HasSubstr("reducing for 5."));
  EXPECT_THAT(
      hung[0].reason,
      HasSubstr("; replica 1 waits for it; replica 0 waits for replica 1"));
  EXPECT_TRUE(watch_.liveness(2, 1).hung);
  EXPECT_FALSE(watch_.liveness(0, 1).hung);
}

TEST_F(Watched, WhoComputesHasItsOwnLimitWhoeverWaitsForIt) {
  pass_steps(1);
  ++serial_;
  says(0, Activity::kReducing, serial_, 2);
  says(1, Activity::kReducing, serial_, 2);
  says(2, Activity::kComputing, serial_ + 7);
  // Its first computations may take a minute.
  for (const auto& one : pass(seconds(55))) {
    EXPECT_EQ(one.kind, Finding::Kind::kSlow) << one.reason;
    EXPECT_EQ(one.replica, 2U) << one.reason;
  }
  const auto found = pass(seconds(10));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Finding::Kind::kHung);
  EXPECT_EQ(found[0].replica, 2U);
}

TEST_F(Watched, AfterTheFirstStepsComputingHasALimitOfTenUsualOnes) {
  pass_steps(6);
  ++serial_;
  for (ReplicaId replica = 0; replica < 3; ++replica) {
    says(replica, Activity::kIdle, serial_);
  }
  says(1, Activity::kComputing, serial_);
  const auto slow = pass(seconds(7));
  ASSERT_THAT(slow, SizeIs(1));
  EXPECT_EQ(slow[0].kind, Finding::Kind::kSlow);
  EXPECT_THAT(slow[0].reason, HasSubstr("it usually takes 0.7 s"));
  const auto hung = pass(seconds(1));
  ASSERT_THAT(hung, SizeIs(1));
  EXPECT_EQ(hung[0].kind, Finding::Kind::kHung);
}

TEST_F(Watched, WhoMovesAgainIsNotHungAnyMore) {
  pass_steps(6);
  says(1, Activity::kReducing, ++serial_);
  (void)pass(seconds(10));
  EXPECT_TRUE(watch_.liveness(1, 1).hung);
  says(1, Activity::kReducing, ++serial_);
  (void)pass(milliseconds(250));
  EXPECT_FALSE(watch_.liveness(1, 1).hung);
}

TEST_F(Watched, OneThatHungForLongIsFoundSoonWhenItHangsAgain) {
  pass_steps(6);
  said_[0].activity = said_[2].activity = Activity::kIdle;
  for (const auto activity : {Activity::kComputing, Activity::kReducing}) {
    says(1, activity, ++serial_);
    EXPECT_THAT(hangs_in(seconds(100)), SizeIs(1)) << text_of(activity);
    says(1, Activity::kWaiting, ++serial_);
    EXPECT_THAT(hangs_in(seconds(1)), IsEmpty());
    says(1, activity, ++serial_);
    EXPECT_THAT(hangs_in(seconds(30)), SizeIs(1)) << text_of(activity);
  }
}

TEST_F(Watched, WhoWaitedForOneThatHungIsFoundSoonToo) {
  pass_steps(6);
  says(0, Activity::kReducing, ++serial_, 1);
  says(1, Activity::kComputing, serial_);
  says(2, Activity::kReducing, serial_, 0);
  EXPECT_THAT(hangs_in(seconds(100)), SizeIs(1));
  pass_steps(1);
  said_[1].activity = said_[2].activity = Activity::kIdle;
  says(0, Activity::kReducing, ++serial_);
  EXPECT_THAT(hangs_in(seconds(6)), SizeIs(1));
  // It waited for one that waited.
  said_[0].activity = Activity::kIdle;
  says(2, Activity::kReducing, ++serial_);
  EXPECT_THAT(hangs_in(seconds(15)), SizeIs(1));
}

// The model may have become slower, by longer sequences for example.
TEST_F(Watched, PhasesThatTakeLongerFromNowOnAreFoundToHangAFewTimes) {
  pass_steps(6);
  said_[0].activity = said_[2].activity = Activity::kIdle;
  std::size_t hangs = 0;
  for (int i = 0; i < 10; ++i) {
    says(1, Activity::kComputing, ++serial_);
    const auto hung = hangs_in(seconds(20)).size();
    says(1, Activity::kWaiting, ++serial_);
    EXPECT_THAT(hangs_in(seconds(1)), IsEmpty());
    hangs += hung;
    EXPECT_TRUE(i < 3 || hung == 0) << i;
  }
  EXPECT_GE(hangs, 1U);
}

TEST_F(Watched, WhoWaitsForADecisionNeverHangs) {
  for (ReplicaId replica = 0; replica < 3; ++replica) {
    says(replica, Activity::kWaiting, 1);
  }
  EXPECT_THAT(pass(seconds(1000)), IsEmpty());
}

TEST_F(Watched, AmongThoseThatWaitInACircleOneIsFound) {
  pass_steps(6);
  ++serial_;
  says(0, Activity::kReducing, serial_, 1);
  says(1, Activity::kReducing, serial_, 2);
  says(2, Activity::kReducing, serial_, 0);
  const auto found = pass(seconds(6));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Finding::Kind::kHung);
}

TEST_F(Watched, WhatWasSaidBeforeAnotherMovedMakesNoCircle) {
  pass_steps(6);
  ++serial_;
  says(0, Activity::kReducing, serial_, 2);
  says(1, Activity::kReducing, serial_, 0);
  says(2, Activity::kIdle, serial_);  // It evaluates.
  EXPECT_THAT(hangs_in(seconds(8)), IsEmpty());
  // Its frames are under way when 0 reports again.
  says(2, Activity::kReducing, ++serial_, 1);
  const TrainingProgress reduces{Activity::kReducing, serial_, 1};
  for (ReplicaId replica = 0; replica < 3; ++replica) {
    says_rank(replica, reduces, 0, replica == 2 ? 6 : 0);
  }
  EXPECT_THAT(hangs_in(milliseconds(250)), IsEmpty());
  EXPECT_THAT(hangs_in(seconds(11)), SizeIs(1));
}

TEST_F(Watched, InACircleItIsTheEndOfTheLinkThatIsDead) {
  for (ReplicaId from = 0; from < 3; ++from) {
    pass_steps(6);
    wait_in_a_circle();
    for (ReplicaId replica = 0; replica < 3; ++replica) {
      says_rank(replica, said_[replica], 5, replica == from ? 6 : 5);
    }
    const auto hung = hangs_in(seconds(8));
    ASSERT_THAT(hung, SizeIs(1));
    const auto to = (from + 1) % 3;
    EXPECT_EQ(hung[0].replica, to);
    ASSERT_THAT(hung[0].links, SizeIs(1));
    EXPECT_EQ(hung[0].links[0].from, from);
    EXPECT_EQ(hung[0].links[0].to, to);
    EXPECT_THAT(
        hung[0].reason,
        HasSubstr("is dead: 1 frame of rank 0 went and has not come"));
    ranks_.clear();
  }
}

// A parent waits for its child's part, and the child for the parent's sum.
TEST_F(Watched, InTreesADeadLinkIsBetweenTwoThatWaitForEachOther) {
  pass_steps(6);
  ++serial_;
  const std::vector<std::vector<RingLink>> links = {
      {{.peer = 1, .frames_in = 5, .frames_out = 5},
       {.peer = 2, .frames_in = 6, .frames_out = 5}},
      {{.peer = 0, .frames_in = 5, .frames_out = 6}},
      {{.peer = 0, .frames_in = 5, .frames_out = 6}}};
  for (ReplicaId replica = 0; replica < 3; ++replica) {
    says(replica, Activity::kReducing, serial_, replica == 0 ? 1 : 0);
    auto rank = said_[replica];
    rank.place = RingPosition{.epoch = {1, 1}, .links = links[replica]};
    ranks_[replica] = {rank};
  }
  const auto hung = hangs_in(seconds(8));
  ASSERT_THAT(hung, SizeIs(1));
  EXPECT_EQ(hung[0].replica, 0U);
  ASSERT_THAT(hung[0].links, SizeIs(1));
  EXPECT_EQ(hung[0].links[0].from, 1U);
  EXPECT_EQ(hung[0].links[0].to, 0U);
}

TEST_F(Watched, WhoLacksTheLastBytesOfOneThatIsDoneIsAtTheEndOfADeadLink) {
  pass_steps(6);
  ++serial_;
  says(0, Activity::kReducing, serial_, 2);
  says_rank(0, said_[0], 7, 8);
  for (const ReplicaId done : {1U, 2U}) {
    says(done, Activity::kWaiting, serial_);
    says_rank(done, said_[done], 8, 8);
  }
  const auto hung = hangs_in(seconds(6));
  ASSERT_THAT(hung, SizeIs(1));
  EXPECT_EQ(hung[0].replica, 0U);
  ASSERT_THAT(hung[0].links, SizeIs(1));
  EXPECT_EQ(hung[0].links[0].from, 2U);
}

TEST_F(Watched, AnAgentThatSaysNothingHangsWhateverItsReplicaSaidLast) {
  pass_steps(6);
  // The ring stopped before the replica could report that it waits for nobody.
  wait_in_a_circle();
  for (ReplicaId replica = 0; replica < 3; ++replica) {
    says_rank(replica, said_[replica], 5, 5);
  }
  ranks_[1].push_back(ranks_[1].front());
  ranks_[1][1].rank = 1;
  ranks_[1][1].missed_heartbeats = 19;
  EXPECT_THAT(hangs_in(seconds(9)), IsEmpty());
  ranks_[1][1].missed_heartbeats = 21;
  const auto hung = hangs_in(seconds(1));
  ASSERT_THAT(hung, SizeIs(1));
  EXPECT_EQ(hung[0].replica, 1U);
  EXPECT_THAT(hung[0].links, IsEmpty());
  EXPECT_THAT(
      hung[0].reason,
      HasSubstr("one of its agents has said nothing for 5.2 s, the limit is "
                "5.0 s; rank 1 has an agent"));
}

TEST_F(Watched, ShowsForHowLongEachRankHasDoneWhatItDoes) {
  says(0, Activity::kComputing, 1);
  ranks_[0] = {{Activity::kComputing, 1, {}}, {Activity::kReducing, 1, {}}};
  ranks_[0][1].rank = 1;
  pass(seconds(2));
  ranks_[0][1].serial = 2;
  pass(seconds(1));
  const auto ranks = watch_.ranks(0, 1, now_);
  ASSERT_THAT(ranks, SizeIs(2));
  EXPECT_EQ(ranks[0].standing, seconds(3));
  EXPECT_EQ(ranks[1].standing, seconds(1));
  EXPECT_THAT(watch_.ranks(0, 2, now_), IsEmpty());
}

// A replica of many ranks reports other ranks each time.
TEST_F(Watched, KnowsARankByItsNumberAndNotByItsPlace) {
  says(0, Activity::kComputing, 1);
  TrainingProgress rank{Activity::kReducing, 1, {}};
  rank.rank = 7;
  ranks_[0] = {rank};
  pass(seconds(2));
  ranks_[0] = {TrainingProgress{Activity::kReducing, 1, {}}, rank};
  pass(seconds(1));
  const auto ranks = watch_.ranks(0, 1, now_);
  ASSERT_THAT(ranks, SizeIs(2));
  EXPECT_EQ(ranks[0].standing, seconds(1));
  EXPECT_EQ(ranks[1].standing, seconds(3));
}

TEST_F(Watched, WhoWaitsForOneThatIsDoneHangsItself) {
  pass_steps(6);
  ++serial_;
  says(0, Activity::kReducing, serial_, 1);
  says(1, Activity::kWaiting, serial_);
  says(2, Activity::kWaiting, serial_);
  const auto found = pass(seconds(6));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].replica, 0U);
}

// An evaluation may take as long as a first computation, however short it usually is.
TEST_F(Watched, OneThatDoesNothingForLongWhileOthersWaitForItHangs) {
  pass_steps(6);
  ++serial_;
  says(0, Activity::kReducing, serial_, 1);
  says(1, Activity::kIdle, serial_);
  says(2, Activity::kReducing, serial_, 1);
  EXPECT_THAT(hangs_in(seconds(59)), IsEmpty());
  const auto found = pass(seconds(6));
  ASSERT_FALSE(found.empty());
  for (const auto& one : found) {
    EXPECT_EQ(one.replica, 1U);
  }
}

// The report of the waiting replica may be one heartbeat old.
TEST_F(Watched, OneThatHasJustMovedIsNotBlamed) {
  pass_steps(6);
  ++serial_;
  says(0, Activity::kReducing, serial_, 1);
  says(1, Activity::kComputing, serial_);
  says(2, Activity::kReducing, serial_, 1);
  for (const auto& one : pass(seconds(6))) {
    EXPECT_EQ(one.kind, Finding::Kind::kSlow) << one.reason;
  }
  says(1, Activity::kIdle, ++serial_);
  EXPECT_THAT(pass(seconds(1)), IsEmpty());
  EXPECT_THAT(pass(seconds(61)), SizeIs(1));
}

// Its serial changes when the activity begins and with each slice.
TEST_F(Watched, ProgressWithinTheFirstPhaseOfAnActivityIsNotItsEnd) {
  pass_steps(6);
  said_[0].activity = said_[1].activity = said_[2].activity = Activity::kIdle;
  for (const std::uint64_t serial : {1U, 2U}) {
    says(4, Activity::kApplying, serial);
    EXPECT_THAT(hangs_in(milliseconds(250)), IsEmpty());
  }
  EXPECT_THAT(hangs_in(seconds(55)), IsEmpty());
}

TEST_F(Watched, TheFirstPhaseOfAnActivityMayTakeLong) {
  for (const auto activity :
       {Activity::kReducing, Activity::kApplying, Activity::kFetching}) {
    const ReplicaId fresh = 3 + static_cast<ReplicaId>(activity);
    says(fresh, activity, 1);
    EXPECT_THAT(hangs_in(seconds(55)), IsEmpty()) << text_of(activity);
    EXPECT_THAT(hangs_in(seconds(10)), SizeIs(1)) << text_of(activity);
    // Later phases have their own usual length.
    says(fresh, Activity::kIdle, 2);
    (void)pass(seconds(1));
    EXPECT_FALSE(watch_.liveness(fresh, 1).hung);
    said_.erase(fresh);
    watch_.ended(fresh, 1);
  }
}

// An evaluation, or a copy for a replica that has returned, says nothing about the next one.
TEST_F(Watched, OtherWorkThanAStepMayAlwaysTakeLong) {
  pass_steps(6);
  for (int i = 0; i < 6; ++i) {
    says(1, Activity::kOtherWork, ++serial_);
    EXPECT_THAT(hangs_in(milliseconds(250)), IsEmpty());
    says(1, Activity::kComputing, ++serial_);
    EXPECT_THAT(hangs_in(milliseconds(250)), IsEmpty());
  }
  said_[0].activity = said_[2].activity = Activity::kIdle;
  says(1, Activity::kOtherWork, ++serial_);
  EXPECT_THAT(hangs_in(seconds(55)), IsEmpty());
  EXPECT_THAT(hangs_in(seconds(10)), SizeIs(1));
}

// The leader reports the step before the rank reports that it does something else.
TEST_F(Watched, OneThatHasMadeItsFirstStepIsNotHungForHowLongThatTook) {
  says(1, Activity::kApplying, 1);
  EXPECT_THAT(hangs_in(seconds(20)), IsEmpty());
  ++held_;
  EXPECT_THAT(hangs_in(seconds(1)), IsEmpty());
}

// Its optimizer steps are shorter than the time between two reports.
TEST_F(Watched, AStepThatWasMadeShowsThatItsPhasesEnd) {
  pass_steps(6);
  ++held_;
  pass_steps(1);
  says(1, Activity::kApplying, ++serial_);
  said_[0].activity = said_[2].activity = Activity::kIdle;
  EXPECT_THAT(hangs_in(seconds(6)), SizeIs(1));
}

// Its computations are shorter than the time between two reports.
TEST_F(Watched, AfterFiveStepsWithItsSamplesItsComputationsAreNotTheFirst) {
  for (const int steps : {4, 5}) {
    const auto at = static_cast<ReplicaId>(steps);
    says(at, Activity::kReducing, 1);
    (void)pass(milliseconds(250));
    for (int i = 0; i < steps; ++i) {
      watch_.committed({{at, 1, {{0, 8}}}, {at, 2, {{8, 16}}}});
    }
    says(at, Activity::kComputing, 2);
    EXPECT_THAT(hangs_in(seconds(6)), SizeIs(steps < 5 ? 0 : 1)) << steps;
  }
}

TEST_F(Watched, StepsThatItFollowedAreNoComputations) {
  says(4, Activity::kReducing, 1);
  (void)pass(milliseconds(250));
  for (int i = 0; i < 9; ++i) {
    watch_.committed({{4, 1, {}}, {5, 1, {{0, 8}}}});
  }
  says(4, Activity::kComputing, 2);
  EXPECT_THAT(hangs_in(seconds(55)), IsEmpty());
  EXPECT_THAT(hangs_in(seconds(10)), SizeIs(1));
}

// Nothing sent by one replica arrives, and nothing reaches it.
TEST_F(Watched, InACircleTheCommonEndOfTwoDeadLinksIsTheCulprit) {
  for (ReplicaId cut = 0; cut < 3; ++cut) {
    pass_steps(6);
    wait_in_a_circle();
    for (ReplicaId replica = 0; replica < 3; ++replica) {
      const bool sends_in_vain = replica == cut || (replica + 1) % 3 == cut;
      says_rank(replica, said_[replica], 5, sends_in_vain ? 6 : 5);
    }
    const auto hung = hangs_in(seconds(8));
    ASSERT_THAT(hung, SizeIs(1));
    EXPECT_EQ(hung[0].replica, cut);
    EXPECT_THAT(hung[0].links, SizeIs(2));
    ranks_.clear();
  }
}

TEST_F(Watched, AReductionThatIsGivenUpIsNoProgress) {
  pass_steps(6);
  says(1, Activity::kComputing, serial_ += 9);
  said_[0].activity = said_[2].activity = Activity::kIdle;
  (void)pass(seconds(8));
  EXPECT_TRUE(watch_.liveness(1, 1).hung);
  says(1, Activity::kComputing, serial_ - 1);
  (void)pass(seconds(1));
  EXPECT_TRUE(watch_.liveness(1, 1).hung);
}

TEST_F(Watched, ASlowOneIsShownOnceAPhase) {
  pass_steps(6);
  says(1, Activity::kComputing, ++serial_);
  said_[0].activity = said_[2].activity = Activity::kIdle;
  EXPECT_THAT(pass(seconds(4)), SizeIs(1));
  EXPECT_TRUE(watch_.liveness(1, 1).slow);
  says(1, Activity::kIdle, ++serial_);
  EXPECT_THAT(pass(seconds(1)), IsEmpty());
  EXPECT_FALSE(watch_.liveness(1, 1).slow);
}

}  // namespace
}  // namespace sherd::ft
