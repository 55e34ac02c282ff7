// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/hang_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::ft {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

RankActivity rank(Activity activity, std::uint64_t serial = 0) {
  RankActivity view;
  view.progress.activity = activity;
  view.progress.serial = serial;
  view.standing = milliseconds(6230);
  return view;
}

RankActivity waiting_rank(ReplicaId waits_for, bool to_read = false) {
  RankActivity view = rank(Activity::kReducing, 7);
  view.progress.waits_for = waits_for;
  view.progress.to_read = to_read;
  view.progress.place = RingPosition{
      .epoch = {1, 1},
      .bucket = 3,
      .unit = "layers.4",
      .slices_done = 41,
      .slices = 96};
  return view;
}

// It has a connection from `previous` and one to `next`.
ReplicaActivity in_ring(
    ReplicaId replica,
    ReplicaId previous,
    ReplicaId next,
    std::uint32_t frames_in,
    std::uint32_t frames_out) {
  auto view = waiting_rank(previous);
  view.progress.place->links = {
      {.peer = previous, .frames_in = frames_in},
      {.peer = next, .frames_out = frames_out}};
  return {replica, {view}};
}

// Numbers its ranks from 0.
ReplicaActivity numbered(ReplicaActivity replica) {
  for (std::size_t i = 0; i < replica.ranks.size(); ++i) {
    replica.ranks[i].progress.rank = static_cast<std::uint32_t>(i);
  }
  return replica;
}

TEST(HangReport, SaysWhichRankComputesAndWhoWaitsForItInWhichUnit) {
  const auto culprit =
      numbered({2, {waiting_rank(1), rank(Activity::kComputing, 6)}});
  const auto waits =
      numbered({0, {rank(Activity::kWaiting, 9), waiting_rank(2)}});
  EXPECT_EQ(
      hang_report(culprit, {waits, culprit}),
      "rank 1 has been computing for 6.2 s; replica 0 rank 1 waits for its "
      "bytes in bucket 3 (layers.4), 41 of 96 slices done");
}

TEST(HangReport, ThoseThatWaitForItComeBeforeThoseThatWaitForThem) {
  const ReplicaActivity culprit{2, {rank(Activity::kComputing)}};
  EXPECT_EQ(
      hang_report(culprit, {{1, {waiting_rank(0)}}, {0, {waiting_rank(2)}}}),
      "rank 0 has been computing for 6.2 s; replica 0 rank 0 waits for its "
      "bytes in bucket 3 (layers.4), 41 of 96 slices done; replica 1 rank 0 "
      "waits for the bytes of replica 0 in bucket 3 (layers.4), 41 of 96 "
      "slices "
      "done");
}

TEST(HangReport, ReadingIsNotBytesAndABucketNeedsNoName) {
  auto waits = waiting_rank(2, true);
  waits.progress.place->unit.clear();
  EXPECT_THAT(
      hang_report({2, {rank(Activity::kReducing)}}, {{0, {waits}}}),
      HasSubstr("waits for its reading in bucket 3, 41 of 96 slices done"));
}

TEST(HangReport, AnAgentThatSaysNothingIsBehindWhateverItSaidLast) {
  auto stopped = waiting_rank(0);
  stopped.progress.serial = 100;
  stopped.progress.missed_heartbeats = 21;
  const auto culprit = numbered({1, {rank(Activity::kWaiting, 5), stopped}});
  EXPECT_THAT(ranks_behind(culprit), ElementsAre(1U));
  EXPECT_THAT(
      hang_report(culprit, {}),
      StartsWith("rank 1 has an agent that has said nothing for 5.2 s"));
}

TEST(HangReport, RanksThatAreAsFarAsEachOtherAreAllNamedInOne) {
  const ReplicaActivity culprit{
      1, {rank(Activity::kComputing), rank(Activity::kComputing)}};
  EXPECT_THAT(ranks_behind(culprit), ElementsAre(0U, 1U));
  EXPECT_THAT(
      hang_report(culprit, {}), StartsWith("none of its ranks is behind: "));
}

TEST(HangReport, OfReplicasWithoutRanksSaysWhatItCan) {
  ReplicaActivity waits{0, {}};
  waits.waits_for = 1;
  EXPECT_EQ(hang_report({1, {}}, {waits}), "replica 0 waits for it");
  EXPECT_THAT(hang_report({1, {}}, {}), IsEmpty());
}

TEST(HangReport, NamesTheFirstOfManyThatWait) {
  std::vector<ReplicaActivity> others;
  for (ReplicaId replica = 1; replica < 101; ++replica) {
    others.push_back({replica, {waiting_rank(replica - 1)}});
  }
  const auto report = hang_report({0, {rank(Activity::kComputing)}}, others);
  EXPECT_THAT(report, HasSubstr("; replica 1 rank 0 waits for its bytes"));
  EXPECT_THAT(report, HasSubstr("; 92 more ranks wait"));
  EXPECT_THAT(report, Not(HasSubstr("replica 50")));
}

TEST(DeadLink, IsWhereFramesWentAndHaveNotCome) {
  const auto links = dead_links(
      {in_ring(0, 2, 1, 5, 6), in_ring(1, 0, 2, 4, 5), in_ring(2, 1, 0, 5, 5)});
  ASSERT_THAT(links, SizeIs(1));
  EXPECT_EQ(links[0].from, 0U);
  EXPECT_EQ(links[0].to, 1U);
  EXPECT_EQ(
      text_of(links[0]),
      "the link from replica 0 to replica 1 is dead: 2 frames of rank 0 went "
      "and have not come");
}

// Replicas of many ranks report those that have moved least.
TEST(DeadLink, IsLookedForBetweenRanksOfOneNumber) {
  auto from = in_ring(0, 2, 1, 5, 6);
  auto to = in_ring(1, 0, 2, 4, 5);
  from.ranks[0].progress.rank = to.ranks[0].progress.rank = 300;
  to.ranks.insert(to.ranks.begin(), waiting_rank(0));
  const auto links = dead_links({from, to});
  ASSERT_EQ(links.size(), 1U);
  EXPECT_EQ(links[0].rank, 300U);
  to.ranks[1].progress.rank = 301;
  EXPECT_THAT(dead_links({from, to}), IsEmpty());
}

// In trees frames go both ways between two replicas, and counts wrap at 2^32.
TEST(DeadLink, IsLookedForToEachPeer) {
  constexpr std::uint32_t kLast = 0xffffffffU;
  auto from = in_ring(0, 2, 1, 5, 0);
  from.ranks[0].progress.place->links = {
      {.peer = 1, .frames_in = 9, .frames_out = 1},
      {.peer = 2, .frames_in = 3, .frames_out = 4},
      {.peer = 3, .frames_in = 3, .frames_out = 4}};
  auto first = in_ring(1, 0, 0, kLast, 0);
  first.ranks[0].progress.place->links = {
      {.peer = 0, .frames_in = kLast, .frames_out = 9}};
  const auto links =
      dead_links({from, first, in_ring(2, 0, 1, 4, 3), in_ring(3, 0, 1, 3, 3)});
  ASSERT_THAT(links, SizeIs(2));
  EXPECT_EQ(links[0].to, 1U);
  EXPECT_EQ(links[0].frames, 2U);
  EXPECT_EQ(links[1].to, 3U);
}

TEST(DeadLink, NothingIsMissingBetweenThoseThatGotAll) {
  EXPECT_THAT(
      dead_links({in_ring(0, 1, 1, 5, 6), in_ring(1, 0, 0, 6, 5)}), IsEmpty());
}

TEST(DeadLink, IsNotBetweenThoseOfDifferentEpochsOrOtherNeighbours) {
  auto late = in_ring(1, 0, 2, 1, 1);
  late.ranks[0].progress.place->epoch = {1, 2};
  EXPECT_THAT(dead_links({in_ring(0, 2, 1, 5, 6), late}), IsEmpty());
  EXPECT_THAT(
      dead_links({in_ring(0, 2, 3, 5, 6), in_ring(1, 0, 2, 1, 1)}), IsEmpty());
  EXPECT_THAT(
      dead_links({{0, {}}, {1, {rank(Activity::kReducing)}}}), IsEmpty());
}

}  // namespace
}  // namespace sherd::ft
