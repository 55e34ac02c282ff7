// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/status_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::ft {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Book : public ::testing::Test {
 protected:
  Book() {
    view_.canonical = {7, {1, 1}};
    view_.epoch = {1, 2};
    view_.stage = EpochStage::kRunning;
    view_.members = {{0, 1, {{0, 4}}}, {1, 1, {}}};
    for (ReplicaId replica = 0; replica < 4; ++replica) {
      report(replica, replica < 3 ? 7 : 5);
    }
    book_.told(0, 1, std::make_shared<const RunView>(view_));
  }
  void report(ReplicaId replica, std::int64_t step) {
    Report report;
    report.replica = replica;
    report.incarnation = 1;
    report.held = StateId{step, {1, 1}};
    book_.received(report, "127.0.0.1:1", now_);
  }
  std::vector<std::string> states(
      const StatusBoard::StatusSources& sources = {}) {
    std::vector<std::string> states;
    for (const auto& one : book_.status(sources, now_).replicas) {
      states.push_back(one.state);
    }
    return states;
  }

  Instant now_ = seconds(10);
  StatusBoard book_{now_};
  RunView view_;
};

TEST_F(Book, EachReplicaHasAState) {
  EXPECT_THAT(states(), ElementsAre("member", "follows", "ready", "behind"));
  EXPECT_EQ(book_.status({}, now_).replicas[3].lag, 2);
  EXPECT_EQ(book_.status({}, now_).stage, "running");
  Report working;
  working.incarnation = 1;
  working.progress.activity = Activity::kComputing;
  FailureDetector detector(
      {.dead_after = seconds(9), .first_floor = seconds(1)});
  detector.received(working, now_);
  (void)detector.tick(now_ + seconds(2));
  book_.lost(2, 1, "closed", now_);
  RunView fence;
  fence.fenced = "a newer one";
  book_.told(3, 1, std::make_shared<const RunView>(fence));
  EXPECT_THAT(
      states({.complaint = "", .detector = &detector}),
      ElementsAre("hangs", "follows", "lost", "fenced"));
}

TEST_F(Book, AStateIsAsOldAsItsChange) {
  (void)states();
  now_ += seconds(5);
  EXPECT_EQ(book_.status({}, now_).replicas[0].since_s, 5);
  book_.lost(0, 1, "closed", now_);
  EXPECT_EQ(book_.status({}, now_).replicas[0].since_s, 0);
}

TEST_F(Book, FailuresAreKeptNewestFirstAndNotForEver) {
  for (int i = 0; i < 100; ++i) {
    book_.failed("log", std::to_string(i), now_);
    now_ += seconds(1);
  }
  const auto failures = book_.status({}, now_).failures;
  ASSERT_THAT(failures, SizeIs(32));
  EXPECT_EQ(failures[0].cause, "99");
  EXPECT_EQ(failures[0].ago_s, 1);
}

TEST_F(Book, WhoLeavesOrIsFencedHasNotFailed) {
  Report leaving;
  leaving.replica = 1;
  leaving.incarnation = 1;
  leaving.leaving = true;
  book_.received(leaving, "", now_);
  book_.lost(1, 1, "closed", now_);
  RunView fence;
  fence.fenced = "a newer one";
  book_.told(2, 1, std::make_shared<const RunView>(fence));
  book_.lost(2, 1, "closed", now_);
  book_.lost(3, 99, "of another life", now_);
  EXPECT_THAT(book_.status({}, now_).failures, IsEmpty());
}

TEST_F(Book, WhoHasFinishedHasNotFailedWhoeverLosesIt) {
  Report finished;
  finished.replica = 1;
  finished.incarnation = 1;
  finished.finished = true;
  book_.received(finished, "", now_);
  book_.lost(1, 1, "closed", now_);
  Report other;
  other.replica = 0;
  other.incarnation = 1;
  other.suspicion = Suspicion{{1, 2}, 1, "replica 1 has left"};
  book_.received(other, "", now_);
  EXPECT_THAT(book_.status({}, now_).failures, IsEmpty());
  EXPECT_EQ(states()[1], "done");
}

TEST_F(Book, OneThatIsRefusedIsNotShownInsteadOfOneThatCounts) {
  Report former;
  former.replica = 0;
  former.incarnation = 9;
  book_.received(former, "", now_, /*has_place=*/false);
  EXPECT_EQ(states()[0], "member");
  former.replica = 5;  // There is no other replica.
  book_.received(former, "", now_, /*has_place=*/false);
  EXPECT_THAT(states(), SizeIs(5));
  former.replica = 1U << 30U;
  book_.received(former, "", now_, /*has_place=*/false);
  EXPECT_THAT(states(), SizeIs(5));
}

// Suspicions that come with a newcomer's first step or the end of an epoch are nobody's failure.
TEST_F(Book, ASuspicionThatIsNoNewsIsNoFailure) {
  Report report;
  report.replica = 1;
  report.incarnation = 1;
  // The epoch is over, or planned.
  for (const std::uint64_t epoch : {1U, 3U}) {
    report.suspicion = Suspicion{{1, epoch}, 0, "replica 0 has stopped it", 0};
    book_.received(report, "", now_);
  }
  // It only repeats what another replica says of it.
  report.suspicion = Suspicion{{1, 2}, 1, "reset by peer", 0};
  book_.received(report, "", now_);
  // All members know that the epoch is over.
  view_.stage = EpochStage::kClosed;
  book_.told(0, 1, std::make_shared<const RunView>(view_));
  report.suspicion = Suspicion{{1, 2}, 0, "replica 0 has stopped it", 0};
  book_.received(report, "", now_);
  EXPECT_THAT(book_.status({}, now_).failures, IsEmpty());
}

TEST_F(Book, ASuspicionIsAFailureOnce) {
  Report report;
  report.replica = 1;
  report.incarnation = 1;
  report.suspicion = Suspicion{{1, 2}, 2, "reset by peer"};
  book_.received(report, "", now_);
  book_.received(report, "", now_);
  const auto failures = book_.status({}, now_).failures;
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_EQ(failures[0].culprit, "replica 2");
  EXPECT_EQ(failures[0].cause, "reset by peer (says replica 1)");
}

TEST_F(Book, WhatTheCoordinatorFindsOutIsCountedAndShown) {
  book_.noticed({"wrong_sums", "replica 2"}, "another sum", now_);
  const auto status = book_.status({}, now_);
  EXPECT_EQ(status.counters.at("wrong_sums"), 1U);
  ASSERT_THAT(status.failures, SizeIs(1));
  EXPECT_EQ(status.failures[0].culprit, "replica 2");
  EXPECT_EQ(status.failures[0].cause, "another sum");
}

TEST_F(Book, NumbersThatAreMadeUpFillNoMemory) {
  for (ReplicaId replica = 0; replica < 10000; ++replica) {
    report(replica, 0);
  }
  EXPECT_THAT(book_.status({}, now_).replicas, SizeIs(4096));
}

TEST_F(Book, CommitsMakeThePace) {
  for (int i = 0; i < 11; ++i) {
    book_.wrote(CommitRecord(), "all have voted", now_);
    now_ += seconds(2);
  }
  now_ -= seconds(2);
  const auto status = book_.status({}, now_);
  EXPECT_DOUBLE_EQ(status.steps_per_s, 0.5);
  EXPECT_EQ(status.counters.at("commits"), 11U);
  EXPECT_EQ(status.since_commit_s, 0);
  EXPECT_EQ(status.effective, 1.0);
}

}  // namespace
}  // namespace sherd::ft
