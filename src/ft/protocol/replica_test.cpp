// SPDX-License-Identifier: Apache-2.0
//
// What a replica may do, order by order.
#include "ft/protocol/replica.h"

#include <gmock/gmock.h>

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const StateId kFirst{0, first_lineage(1, 2)};
const StateId kSecond{1, {5, 6}};
constexpr ReplicaId kMe = 1;
constexpr Incarnation kLife = 11;

Order order_of(
    Epoch epoch, Stage stage, std::vector<SampleRange> samples = {{8, 16}}) {
  Order order;
  order.term = epoch.term;
  order.canonical = kFirst;
  order.epoch = epoch;
  order.stage = stage;
  order.members = {{0, 10, {{0, 8}}}, {kMe, kLife, std::move(samples)}};
  return order;
}

// "compute 1", "join 1.1", ...: what there is to do.
std::vector<std::string> names(const Tasks& tasks) {
  struct Name {
    std::string operator()(const ComputeTask& task) const {
      return "compute " + std::to_string(task.step);
    }
    std::string operator()(const JoinTask& task) const {
      return "join " + std::to_string(task.epoch.number);
    }
    std::string operator()(const ReduceTask& task) const {
      return "reduce " + std::to_string(task.attempt.epoch.number);
    }
    std::string operator()(const StopReduceTask&) const {
      return "stop reduce";
    }
    std::string operator()(const ApplyTask&) const { return "apply"; }
    std::string operator()(const FetchTask& task) const {
      return "fetch " + std::to_string(task.state.step);
    }
    std::string operator()(const StopTask&) const { return "stop"; }
    std::string operator()(const ReportTask&) const { return "report"; }
  };
  std::vector<std::string> names;
  for (const auto& task : tasks) {
    names.push_back(std::visit(Name(), task));
  }
  return names;
}

// In epoch 1.1, with gradients, all joined.
Replica reducing() {
  Replica replica(kMe, kLife, kFirst);
  replica.heard(order_of({1, 1}, Stage::kJoining));
  replica.computed(1);
  replica.joined({1, 1});
  EXPECT_THAT(
      names(replica.heard(order_of({1, 1}, Stage::kRunning))),
      ElementsAre("reduce 1"));
  return replica;
}

Replica voting() {
  auto replica = reducing();
  EXPECT_THAT(names(replica.reduced({{1, 1}, 1}, 99)), ElementsAre("report"));
  return replica;
}

TEST(Replica, ComputesWhileItJoins) {
  Replica replica(kMe, kLife, kFirst);
  EXPECT_THAT(
      names(replica.heard(order_of({1, 1}, Stage::kJoining))),
      ElementsAre("join 1", "compute 1"));
  EXPECT_THAT(names(replica.joined({1, 1})), ElementsAre("report"));
  EXPECT_EQ(replica.report().joined, (Epoch{1, 1}));
  EXPECT_THAT(
      names(replica.heard(order_of({1, 1}, Stage::kRunning))), IsEmpty());
  EXPECT_THAT(names(replica.computed(1)), ElementsAre("reduce 1"));
}

TEST(Replica, AppliesWhatWasCommittedAndNothingElse) {
  auto replica = voting();
  EXPECT_EQ(replica.report().vote->gradients, 99U);
  auto order = order_of({1, 1}, Stage::kRunning);
  EXPECT_THAT(names(replica.heard(order)), IsEmpty());
  order.canonical = kSecond;
  order.commit = Commit{{{1, 1}, 1}, kFirst, kSecond};
  order.members[1].samples = {{16, 24}};
  EXPECT_THAT(
      names(replica.heard(order)), ElementsAre("apply", "compute 2", "report"));
  EXPECT_EQ(replica.held(), kSecond);
  EXPECT_THAT(names(replica.heard(order)), IsEmpty());  // Told twice.
}

TEST(Replica, AFailedReductionIsRepeatedFromTheSameGradients) {
  auto replica = reducing();
  EXPECT_THAT(
      names(replica.reduce_failed({1, 1}, {{1, 1}, 0, "reset"})),
      ElementsAre("report"));
  EXPECT_EQ(replica.report().suspicion->accused, 0U);
  EXPECT_THAT(
      names(replica.heard(order_of({1, 2}, Stage::kJoining))),
      ElementsAre("join 2"));
  replica.joined({1, 2});
  EXPECT_THAT(
      names(replica.heard(order_of({1, 2}, Stage::kRunning))),
      ElementsAre("reduce 2"));
}

TEST(Replica, AVoteOfAnEpochThatIsOverIsDroppedTheGradientsAreNot) {
  auto replica = voting();
  EXPECT_THAT(
      names(replica.heard(order_of({1, 2}, Stage::kJoining))),
      ElementsAre("join 2", "report"));
  EXPECT_EQ(replica.vote(), std::nullopt);
  replica.joined({1, 2});
  EXPECT_THAT(
      names(replica.heard(order_of({1, 2}, Stage::kRunning))),
      ElementsAre("reduce 2"));
}

TEST(Replica, KeepsAnUndecidedVoteWhileTheCoordinatorIsAway) {
  auto replica = voting();
  // A new term that has no epoch of its own yet.
  auto order = order_of({1, 1}, Stage::kClosed);
  order.term = 2;
  order.members.clear();
  EXPECT_THAT(names(replica.heard(order)), IsEmpty());
  EXPECT_TRUE(replica.vote().has_value());
  order.canonical = kSecond;
  order.commit = Commit{{{1, 1}, 1}, kFirst, kSecond};
  EXPECT_THAT(names(replica.heard(order)), ElementsAre("apply", "report"));
}

TEST(Replica, FetchesWhatItDoesNotHold) {
  auto replica = reducing();
  auto order = order_of({1, 3}, Stage::kRunning);
  order.canonical = kSecond;
  order.members.pop_back();
  EXPECT_THAT(
      names(replica.heard(order)), ElementsAre("stop reduce", "fetch 1"));
  EXPECT_THAT(names(replica.computed(1)), IsEmpty());
  EXPECT_THAT(names(replica.fetched(kSecond)), ElementsAre("report"));
  EXPECT_EQ(replica.held(), kSecond);
}

TEST(Replica, FollowsWithoutSamplesAtOnce) {
  Replica replica(kMe, kLife, kFirst);
  replica.heard(order_of({1, 1}, Stage::kJoining, {}));
  replica.joined({1, 1});
  EXPECT_THAT(
      names(replica.heard(order_of({1, 1}, Stage::kRunning, {}))),
      ElementsAre("reduce 1"));
}

TEST(Replica, ComputesAnewForOtherSamples) {
  auto replica = reducing();
  EXPECT_THAT(
      names(replica.heard(order_of({1, 2}, Stage::kJoining, {{0, 8}}))),
      ElementsAre("stop reduce", "join 2", "compute 1"));
}

TEST(Replica, OlderOrdersChangeNothing) {
  auto replica = reducing();
  const auto before = replica;
  EXPECT_THAT(
      names(replica.heard(order_of({1, 1}, Stage::kJoining))), IsEmpty());
  auto former = order_of({1, 7}, Stage::kRunning);
  former.term = 0;
  EXPECT_THAT(names(replica.heard(former)), IsEmpty());
  EXPECT_TRUE(replica == before);
}

TEST(Replica, WhatItsProcessesDidTooLateChangesNothing) {
  auto replica = reducing();
  replica.heard(order_of({1, 2}, Stage::kJoining));
  EXPECT_THAT(names(replica.reduced({{1, 1}, 1}, 99)), IsEmpty());
  EXPECT_THAT(names(replica.reduce_failed({1, 1}, {})), IsEmpty());
  EXPECT_THAT(names(replica.joined({1, 1})), IsEmpty());
  EXPECT_THAT(names(replica.fetched(kSecond)), IsEmpty());
  EXPECT_EQ(replica.vote(), std::nullopt);
}

TEST(Replica, AFencedLifeEnds) {
  auto replica = reducing();
  auto order = order_of({1, 1}, Stage::kRunning);
  order.fenced = "replaced";
  EXPECT_THAT(names(replica.heard(order)), ElementsAre("stop reduce", "stop"));
  EXPECT_THAT(
      names(replica.heard(order_of({1, 2}, Stage::kJoining))), IsEmpty());
}

TEST(Replica, WhatIsDamagedIsFetchedAnew) {
  auto replica = reducing();
  EXPECT_THAT(
      names(replica.damaged()),
      ElementsAre("stop reduce", "fetch 0", "report"));
  EXPECT_EQ(replica.report().held, std::nullopt);
}

}  // namespace
}  // namespace sherd::ft
