// SPDX-License-Identifier: Apache-2.0
//
// What a replica may do, order by order.
#include "ft/protocol/replica.h"

#include <gmock/gmock.h>

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const StateId kFirst{0, first_lineage(1, 2)};
const StateId kSecond{1, {5, 6}};
constexpr ReplicaId kMe = 1;
constexpr Incarnation kLife = 11;
const ReplicaOptions kIdentity = {
    .replica = kMe, .incarnation = kLife, .config = 9, .held = kFirst};
const Commit kCommit = {{{1, 1}, 1}, kFirst, kSecond, 99};

Order order_of(
    Epoch epoch, Stage stage, std::vector<SampleRange> samples = {{8, 16}}) {
  Order order;
  order.run = 7;
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
      return "compute " + std::to_string(task.base.step + 1);
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
    std::string operator()(const CatchUpTask& task) const {
      return "catch up " + std::to_string(task.target.step);
    }
    std::string operator()(const InstallTask&) const { return "install"; }
    std::string operator()(const StopCatchUpTask&) const {
      return "stop catching up";
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

// In epoch 1.1, all joined.
Replica reducing() {
  Replica replica(kIdentity);
  replica.heard(order_of({1, 1}, Stage::kJoining));
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

// After kCommit, with the samples of the next step.
Order committed() {
  auto order = order_of({1, 1}, Stage::kRunning, {{16, 24}});
  order.canonical = kSecond;
  order.recent = {kCommit};
  return order;
}

TEST(Replica, ComputesWhileItJoinsAndReducesWhileItComputes) {
  Replica replica(kIdentity);
  EXPECT_THAT(
      names(replica.heard(order_of({1, 1}, Stage::kJoining))),
      ElementsAre("join 1", "compute 1", "report"));
  EXPECT_EQ(replica.report().run, 7U);
  EXPECT_THAT(names(replica.joined({1, 1})), ElementsAre("report"));
  EXPECT_EQ(replica.report().joined, (Epoch{1, 1}));
  EXPECT_THAT(
      names(replica.heard(order_of({1, 1}, Stage::kRunning))),
      ElementsAre("reduce 1"));
}

TEST(Replica, AppliesWhatWasCommittedAndNothingElse) {
  auto replica = voting();
  EXPECT_EQ(replica.report().vote->gradients, 99U);
  EXPECT_THAT(
      names(replica.heard(order_of({1, 1}, Stage::kRunning))), IsEmpty());
  EXPECT_THAT(names(replica.heard(committed())), ElementsAre("apply"));
  // Until it has: what it says is what it holds.
  EXPECT_EQ(replica.report().held, kFirst);
  EXPECT_TRUE(replica.report().vote.has_value());
  EXPECT_THAT(names(replica.heard(committed())), IsEmpty());  // Told twice.
  EXPECT_THAT(
      names(replica.applied(kSecond)),
      ElementsAre("compute 2", "reduce 1", "report"));
  EXPECT_EQ(replica.held(), kSecond);
  EXPECT_EQ(replica.report().vote, std::nullopt);
}

TEST(Replica, AppliesNoOtherSumOfItsAttempt) {
  auto replica = voting();
  auto order = committed();
  order.recent[0].gradients = 98;
  EXPECT_THAT(names(replica.heard(order)), ElementsAre("catch up 1", "report"));
}

TEST(Replica, WhoIsLateWithItsSumAppliesItAllTheSame) {
  auto replica = reducing();
  EXPECT_THAT(names(replica.heard(committed())), IsEmpty());
  EXPECT_THAT(
      names(replica.reduced({{1, 1}, 1}, 99)), ElementsAre("apply", "report"));
}

TEST(Replica, TellsOfBadGradientsAndFollowsWithoutThem) {
  auto replica = reducing();
  EXPECT_THAT(
      names(replica.bad_gradients(1, {"nan", false})), ElementsAre("report"));
  EXPECT_EQ(
      replica.report().bad_gradients->samples,
      (std::vector<SampleRange>{{8, 16}}));
  EXPECT_THAT(names(replica.bad_gradients(1, {"nan", false})), IsEmpty());
  // The next epoch has its samples as left out.
  auto order = order_of({1, 2}, Stage::kJoining, {});
  order.members[1].left_out = {{8, 16}};
  EXPECT_THAT(
      names(replica.heard(order)),
      ElementsAre("stop reduce", "join 2", "compute 1", "report"));
  EXPECT_EQ(replica.report().bad_gradients, std::nullopt);
}

TEST(Replica, OfGradientsThatNobodyWantsNothingIsTold) {
  auto replica = reducing();
  EXPECT_THAT(names(replica.bad_gradients(0, {"nan", false})), IsEmpty());
  auto done = voting();
  EXPECT_THAT(names(done.bad_gradients(1, {"nan", false})), IsEmpty());
}

TEST(Replica, DropsWhatItHoldsWhenItsDigestIsWrong) {
  auto replica = voting();
  replica.heard(committed());
  const StateDigest digest{kSecond, 5};
  replica.applied(kSecond, digest);
  EXPECT_EQ(replica.report().digest, digest);
  auto order = committed();
  order.wrong = StateDigest{kSecond, 6};
  EXPECT_THAT(names(replica.heard(order)), IsEmpty());  // Of another one.
  order.wrong = digest;
  EXPECT_THAT(
      names(replica.heard(order)),
      ElementsAre("stop reduce", "catch up 1", "report"));
  EXPECT_EQ(replica.held(), std::nullopt);
  EXPECT_EQ(replica.report().digest, std::nullopt);
  EXPECT_THAT(names(replica.heard(order)), IsEmpty());  // Told twice.
}

TEST(Replica, AFailedReductionIsRepeatedFromTheSameGradients) {
  auto replica = reducing();
  EXPECT_THAT(
      names(replica.peer_lost({{1, 1}, 0, "reset"})),
      ElementsAre("stop reduce", "report"));
  EXPECT_EQ(replica.report().suspicion->accused, 0U);
  EXPECT_THAT(
      names(replica.heard(order_of({1, 2}, Stage::kJoining))),
      ElementsAre("join 2"));
  replica.joined({1, 2});
  EXPECT_THAT(
      names(replica.heard(order_of({1, 2}, Stage::kRunning))),
      ElementsAre("reduce 2"));
}

TEST(Replica, NoticesALostPeerBeforeItReduces) {
  Replica replica(kIdentity);
  replica.heard(order_of({1, 1}, Stage::kJoining));
  replica.joined({1, 1});
  EXPECT_THAT(
      names(replica.peer_lost({{1, 1}, 0, "reset"})), ElementsAre("report"));
  EXPECT_THAT(
      names(replica.heard(order_of({1, 1}, Stage::kRunning))), IsEmpty());
}

TEST(Replica, JoinsWhatIsPlannedBesideWhatItReduces) {
  auto replica = reducing();
  auto order = order_of({1, 1}, Stage::kRunning);
  order.planned = PlannedEpoch{{1, 2}, order.members};
  EXPECT_THAT(names(replica.heard(order)), ElementsAre("join 2"));
  EXPECT_THAT(names(replica.joined({1, 2})), ElementsAre("report"));
  EXPECT_EQ(replica.report().joined, (Epoch{1, 2}));
  replica.reduced({{1, 1}, 1}, 99);
  auto next = committed();
  next.epoch = {1, 2};
  EXPECT_THAT(names(replica.heard(next)), ElementsAre("apply"));
  EXPECT_THAT(
      names(replica.applied(kSecond)),
      ElementsAre("compute 2", "reduce 2", "report"));
}

TEST(Replica, WhatItSuspectsUnderWayOutlivesWhatItSuspectsOfAPlan) {
  auto replica = reducing();
  auto order = order_of({1, 1}, Stage::kRunning);
  order.planned = PlannedEpoch{{1, 2}, order.members};
  replica.heard(order);
  replica.damaged();
  replica.peer_lost({{1, 2}, 0, "refused"});
  EXPECT_EQ(replica.report().suspicion->epoch, (Epoch{1, 1}));
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
  order.recent = {kCommit};
  EXPECT_THAT(names(replica.heard(order)), ElementsAre("apply"));
}

TEST(Replica, CatchesUpAndInstallsWhatItFetched) {
  auto replica = reducing();
  auto order = committed();
  order.epoch = {1, 3};
  order.members.pop_back();
  EXPECT_THAT(
      names(replica.heard(order)), ElementsAre("stop reduce", "catch up 1"));
  EXPECT_THAT(names(replica.fetch_failed()), ElementsAre("catch up 1"));
  EXPECT_THAT(names(replica.fetched()), ElementsAre("install"));
  EXPECT_EQ(replica.held(), kFirst);
  // Nothing else begins meanwhile, whatever is canonical.
  EXPECT_THAT(
      names(replica.heard(order_of({1, 4}, Stage::kJoining))),
      ElementsAre("join 4"));
  EXPECT_THAT(
      names(replica.installed(1, kSecond)),
      ElementsAre("catch up 0", "report"));
  EXPECT_EQ(replica.held(), kSecond);
}

TEST(Replica, StopsCatchingUpWhenItsOwnStateIsCanonicalAgain) {
  Replica replica(kIdentity);
  auto order = committed();
  order.members.clear();
  EXPECT_THAT(names(replica.heard(order)), ElementsAre("catch up 1", "report"));
  auto back = order_of({1, 2}, Stage::kClosed);
  EXPECT_THAT(
      names(replica.heard(back)),
      UnorderedElementsAre("stop catching up", "join 2", "compute 1"));
  EXPECT_THAT(names(replica.fetched()), IsEmpty());
  EXPECT_EQ(replica.held(), kFirst);
}

TEST(Replica, FollowsWithoutSamples) {
  Replica replica(kIdentity);
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
  former.fenced = "by one that was replaced itself";
  EXPECT_THAT(names(replica.heard(former)), IsEmpty());
  EXPECT_TRUE(replica == before);
}

TEST(Replica, EndsInOrderWhenTheRunHas) {
  Replica replica(kIdentity);
  auto order = order_of({1, 1}, Stage::kClosed);
  order.fenced = "the run has ended with step 7";
  order.ended = true;
  const auto tasks = replica.heard(order);
  ASSERT_EQ(tasks.size(), 1U);
  EXPECT_EQ(std::get<StopTask>(tasks.front()).reason, "");
}

TEST(Replica, WhatItsProcessesDidTooLateChangesNothing) {
  auto replica = reducing();
  replica.heard(order_of({1, 2}, Stage::kJoining));
  EXPECT_THAT(names(replica.reduced({{1, 1}, 1}, 99)), IsEmpty());
  EXPECT_THAT(names(replica.peer_lost({{1, 1}, 0, "late"})), IsEmpty());
  EXPECT_THAT(names(replica.joined({1, 1})), IsEmpty());
  EXPECT_THAT(names(replica.installed(1, kSecond)), IsEmpty());
  EXPECT_THAT(names(replica.applied(kSecond)), IsEmpty());
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

TEST(Replica, ACoordinatorOfAnotherRunHasNothingToSay) {
  auto replica = reducing();
  const auto before = replica;
  auto order = order_of({2, 1}, Stage::kRunning);
  order.run = 8;
  order.fenced = "this is run 8, the replica is of run 7";
  EXPECT_THAT(names(replica.heard(order)), IsEmpty());
  EXPECT_TRUE(replica == before);
}

TEST(Replica, APlanMayBeTakenBack) {
  auto replica = reducing();
  auto order = order_of({1, 1}, Stage::kRunning);
  order.planned = PlannedEpoch{{1, 2}, order.members};
  replica.heard(order);
  replica.heard(order_of({1, 1}, Stage::kRunning));
  EXPECT_FALSE(replica.order().planned.has_value());
}

TEST(Replica, WhatIsDamagedIsFetchedAnewAndLeavesTheEpoch) {
  auto replica = reducing();
  EXPECT_THAT(
      names(replica.damaged()),
      ElementsAre("stop reduce", "catch up 0", "report"));
  EXPECT_EQ(replica.report().held, std::nullopt);
  EXPECT_EQ(replica.report().suspicion->accused, kMe);
  // The same attempt is not reduced twice.
  replica.fetched();
  EXPECT_THAT(
      names(replica.installed(1, kFirst)), ElementsAre("compute 1", "report"));
}

}  // namespace
}  // namespace sherd::ft
