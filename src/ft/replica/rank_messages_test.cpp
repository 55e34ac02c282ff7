// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/rank_messages.h"

#include <set>
#include <gmock/gmock.h>
#include "ft/replica/rank_messages_testing.h"

namespace sherd::ft {
namespace {

using ::testing::HasSubstr;

const Commit kCommit = {{{2, 7}, 41}, {40, {1, 2}}, {41, {3, 4}}, 99};

TEST(AgentCommands, ComeBackAsTheyWere) {
  const RingMembership join{
      {2, 7}, {{0, 10, "127.0.0.1", 4000}, {3, 11, "h", 5}}};
  const auto joined = rank_task_of(bytes_of(RankTask(join))).value();
  const auto& epoch = std::get<RingMembership>(joined);
  EXPECT_EQ(epoch.epoch, (Epoch{2, 7}));
  EXPECT_EQ(epoch.members[1].replica, 3U);
  EXPECT_EQ(epoch.members[0].port, 4000);
  const ComputeTask compute{5, {40, {1, 2}}, {{0, 8}, {16, 24}}, 3};
  const auto computed = rank_task_of(bytes_of(RankTask(compute))).value();
  EXPECT_EQ(std::get<ComputeTask>(computed).samples, compute.samples);
  EXPECT_EQ(std::get<ComputeTask>(computed).base, compute.base);
  const auto reduce =
      rank_task_of(bytes_of(RankTask(ReduceTask{{{2, 7}, 41}, {8.0, 0.0}})))
          .value();
  EXPECT_EQ(std::get<ReduceTask>(reduce).weights[0], 8.0);
  const auto apply =
      rank_task_of(bytes_of(RankTask(ApplyTask{kCommit}))).value();
  EXPECT_EQ(std::get<ApplyTask>(apply).commit, kCommit);
}

TEST(AgentEvents, ComeBackAsTheyWere) {
  const FetchedEvent fetched{3, "not here", kCommit, 7};
  const auto event = event_of(bytes_of(RankEvent(fetched))).value();
  EXPECT_EQ(std::get<FetchedEvent>(event).failure, "not here");
  EXPECT_EQ(std::get<FetchedEvent>(event).commit, kCommit);
  const WrittenEvent installed{
      2, {41, {3, 4}}, StateDigest{{41, {3, 4}}, 9, true}};
  const auto written =
      std::get<WrittenEvent>(event_of(bytes_of(RankEvent(installed))).value());
  EXPECT_EQ(written.serial, 2U);
  EXPECT_EQ(written.digest, installed.digest);
  const BadGradientsEvent bad{5, {"not finite", true}};
  EXPECT_EQ(
      std::get<BadGradientsEvent>(event_of(bytes_of(RankEvent(bad))).value())
          .fault,
      bad.fault);
  const LinkSpeeds speeds{{2, 5'000'000}};
  EXPECT_EQ(
      std::get<LinkSpeeds>(event_of(bytes_of(RankEvent(speeds))).value()),
      speeds);
  const TrainingProgress progress{Activity::kReducing, 12, ReplicaId{2}};
  EXPECT_EQ(
      std::get<TrainingProgress>(
          event_of(bytes_of(RankEvent(progress))).value()),
      progress);
}

// How many kinds `make` has made; each message is encoded again as the same bytes.
template <auto decode, typename Make>
std::size_t kinds_that_come_back(Make make) {
  std::set<std::size_t> kinds;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    test::RandomMessages random(seed);
    const auto value = make(random);
    kinds.insert(value.index());
    const std::string bytes = bytes_of(value);
    const auto again = decode(bytes);
    EXPECT_TRUE(again.ok()) << again.status().message();
    EXPECT_TRUE(again.ok() && bytes_of(again.value()) == bytes)
        << "kind " << value.index();
  }
  return kinds.size();
}

TEST(AgentCommands, EachKindIsWrittenAgainAsTheSameBytes) {
  EXPECT_EQ(
      kinds_that_come_back<rank_task_of>(test::random_rank_task),
      std::variant_size_v<RankTask>);
}

TEST(AgentEvents, EachKindIsWrittenAgainAsTheSameBytes) {
  EXPECT_EQ(
      kinds_that_come_back<event_of>(test::random_event),
      std::variant_size_v<RankEvent>);
}

TEST(AgentCommands, WhatIsCutOrLongerIsRefused) {
  const auto bytes = bytes_of(RankTask(ApplyTask{kCommit}));
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(rank_task_of(std::string_view(bytes).substr(0, cut)).ok());
  }
  EXPECT_FALSE(rank_task_of(bytes + "x").ok());
  EXPECT_THAT(rank_task_of("\x7f").status().message(), HasSubstr("a command"));
}

}  // namespace
}  // namespace sherd::ft
