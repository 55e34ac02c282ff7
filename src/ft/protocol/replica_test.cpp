// SPDX-License-Identifier: Apache-2.0
//
// The tasks of a replica after each view.
#include "ft/protocol/replica.h"

#include <algorithm>
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
const ReplicaIdentity kIdentity = {
    .replica = kMe, .incarnation = kLife, .config = 9, .held = kFirst};
const Commit kCommit = {{{1, 1}, 1}, kFirst, kSecond, 99};

RunView run_view_of(
    Epoch epoch,
    EpochStage stage,
    std::vector<SampleRange> samples = {{8, 16}}) {
  RunView view;
  view.run = 7;
  view.term = epoch.term;
  view.canonical = kFirst;
  view.epoch = epoch;
  view.stage = stage;
  view.members = {{0, 10, {{0, 8}}}, {kMe, kLife, std::move(samples)}};
  return view;
}

// The names of the tasks: "compute 1", "join 1.1", ...
std::vector<std::string> names(const Tasks& tasks) {
  struct Name {
    std::string operator()(const ComputeTask& task) const {
      return "compute " + std::to_string(task.base.step + 1);
    }
    std::string operator()(const EpochMembers& task) const {
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

// The replica is in epoch 1.1, which all members have joined.
Replica reducing() {
  Replica replica(kIdentity);
  replica.received(run_view_of({1, 1}, EpochStage::kJoining));
  replica.joined({1, 1});
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 1}, EpochStage::kRunning))),
      ElementsAre("reduce 1"));
  return replica;
}

Replica voting() {
  auto replica = reducing();
  EXPECT_THAT(names(replica.reduced({{1, 1}, 1}, 99)), ElementsAre("report"));
  return replica;
}

// The view after kCommit, with the samples of the next step.
RunView committed() {
  auto view = run_view_of({1, 1}, EpochStage::kRunning, {{16, 24}});
  view.canonical = kSecond;
  view.recent = {kCommit};
  return view;
}

TEST(Replica, ComputesWhileItJoinsAndReducesWhileItComputes) {
  Replica replica(kIdentity);
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 1}, EpochStage::kJoining))),
      ElementsAre("join 1", "compute 1", "report"));
  EXPECT_EQ(replica.report().run, 7U);
  EXPECT_THAT(names(replica.joined({1, 1})), ElementsAre("report"));
  EXPECT_EQ(replica.report().joined, (Epoch{1, 1}));
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 1}, EpochStage::kRunning))),
      ElementsAre("reduce 1"));
}

TEST(Replica, AppliesWhatWasCommittedAndNothingElse) {
  auto replica = voting();
  EXPECT_EQ(replica.report().vote->gradients, 99U);
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 1}, EpochStage::kRunning))),
      IsEmpty());
  EXPECT_THAT(names(replica.received(committed())), ElementsAre("apply"));
  // Until it has applied the sum, it reports what it holds.
  EXPECT_EQ(replica.report().held, kFirst);
  EXPECT_TRUE(replica.report().vote.has_value());
  // The view is repeated.
  EXPECT_THAT(names(replica.received(committed())), IsEmpty());
  EXPECT_THAT(
      names(replica.applied(kSecond)),
      ElementsAre("compute 2", "reduce 1", "report"));
  EXPECT_EQ(replica.held(), kSecond);
  EXPECT_EQ(replica.report().vote, std::nullopt);
}

TEST(Replica, AppliesNoOtherSumOfItsAttempt) {
  auto replica = voting();
  auto view = committed();
  view.recent[0].gradients = 98;
  EXPECT_THAT(
      names(replica.received(view)), ElementsAre("catch up 1", "report"));
}

TEST(Replica, WhoIsLateWithItsSumAppliesItAllTheSame) {
  auto replica = reducing();
  EXPECT_THAT(names(replica.received(committed())), IsEmpty());
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
  // The next epoch leaves its samples out.
  auto view = run_view_of({1, 2}, EpochStage::kJoining, {});
  view.members[1].left_out = {{8, 16}};
  EXPECT_THAT(
      names(replica.received(view)),
      ElementsAre("stop reduce", "join 2", "compute 1", "report"));
  EXPECT_EQ(replica.report().bad_gradients, std::nullopt);
}

// The ranks of a replica find different faults.
TEST(Replica, TellsOfAFaultThatStopsTheRunAfterAMilderOne) {
  auto replica = reducing();
  replica.bad_gradients(1, {"too large", false});
  EXPECT_THAT(
      names(replica.bad_gradients(1, {"nan", true})), ElementsAre("report"));
  EXPECT_EQ(
      replica.report().bad_gradients->fault, (GradientFault{"nan", true}));
  EXPECT_THAT(names(replica.bad_gradients(1, {"nan", true})), IsEmpty());
  EXPECT_THAT(names(replica.bad_gradients(1, {"nan", false})), IsEmpty());
  EXPECT_TRUE(replica.report().bad_gradients->fault.stop);
}

TEST(Replica, TellsOfAFaultThatStopsTheRunWhenItsSamplesAreLeftOut) {
  auto replica = reducing();
  replica.bad_gradients(1, {"too large", false});
  replica.received(run_view_of({1, 2}, EpochStage::kJoining, {}));
  EXPECT_THAT(names(replica.bad_gradients(0, {"nan", true})), IsEmpty());
  EXPECT_THAT(
      names(replica.bad_gradients(1, {"nan", true})), ElementsAre("report"));
  EXPECT_TRUE(replica.report().bad_gradients->fault.stop);
}

TEST(Replica, OfGradientsThatNobodyWantsNothingIsTold) {
  auto replica = reducing();
  EXPECT_THAT(names(replica.bad_gradients(0, {"nan", false})), IsEmpty());
  auto done = voting();
  EXPECT_THAT(names(done.bad_gradients(1, {"nan", false})), IsEmpty());
}

TEST(Replica, DropsWhatItHoldsWhenItsDigestIsWrong) {
  auto replica = voting();
  replica.received(committed());
  const StateDigest digest{kSecond, 5};
  replica.applied(kSecond, digest);
  EXPECT_EQ(replica.report().digest, digest);
  auto view = committed();
  view.wrong = StateDigest{kSecond, 6};
  // Its digest is a different one.
  EXPECT_THAT(names(replica.received(view)), IsEmpty());
  view.wrong = digest;
  EXPECT_THAT(
      names(replica.received(view)),
      ElementsAre("stop reduce", "catch up 1", "report"));
  EXPECT_EQ(replica.held(), std::nullopt);
  EXPECT_EQ(replica.report().digest, std::nullopt);
  // The view is repeated.
  EXPECT_THAT(names(replica.received(view)), IsEmpty());
}

TEST(Replica, AFailedReductionIsRepeatedFromTheSameGradients) {
  auto replica = reducing();
  EXPECT_THAT(
      names(replica.peer_lost({{1, 1}, 0, "reset"})),
      ElementsAre("stop reduce", "report"));
  EXPECT_EQ(replica.report().suspicion->accused, 0U);
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 2}, EpochStage::kJoining))),
      ElementsAre("join 2"));
  replica.joined({1, 2});
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 2}, EpochStage::kRunning))),
      ElementsAre("reduce 2"));
}

TEST(Replica, NoticesALostPeerBeforeItReduces) {
  Replica replica(kIdentity);
  replica.received(run_view_of({1, 1}, EpochStage::kJoining));
  replica.joined({1, 1});
  EXPECT_THAT(
      names(replica.peer_lost({{1, 1}, 0, "reset"})), ElementsAre("report"));
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 1}, EpochStage::kRunning))),
      IsEmpty());
}

TEST(Replica, JoinsWhatIsPlannedBesideWhatItReduces) {
  auto replica = reducing();
  auto view = run_view_of({1, 1}, EpochStage::kRunning);
  view.planned = EpochMembers{{1, 2}, view.members};
  EXPECT_THAT(names(replica.received(view)), ElementsAre("join 2"));
  EXPECT_THAT(names(replica.joined({1, 2})), ElementsAre("report"));
  EXPECT_EQ(replica.report().joined, (Epoch{1, 2}));
  replica.reduced({{1, 1}, 1}, 99);
  auto next = committed();
  next.epoch = {1, 2};
  EXPECT_THAT(names(replica.received(next)), ElementsAre("apply"));
  EXPECT_THAT(
      names(replica.applied(kSecond)),
      ElementsAre("compute 2", "reduce 2", "report"));
}

TEST(Replica, DoesNotReduceInAnEpochThatItLostWhileThatWasPlanned) {
  auto replica = reducing();
  auto view = run_view_of({1, 1}, EpochStage::kRunning);
  view.planned = EpochMembers{{1, 2}, view.members};
  replica.received(view);
  replica.joined({1, 2});
  EXPECT_THAT(
      names(replica.peer_lost({{1, 2}, 0, "reset"})), ElementsAre("report"));
  EXPECT_EQ(replica.report().joined, (Epoch{1, 1}));
  replica.reduced({{1, 1}, 1}, 99);
  auto next = committed();
  next.epoch = {1, 2};
  EXPECT_THAT(names(replica.received(next)), ElementsAre("apply"));
  EXPECT_THAT(
      names(replica.applied(kSecond)), ElementsAre("compute 2", "report"));
}

TEST(Replica, WhatItSuspectsUnderWayOutlivesWhatItSuspectsOfAPlan) {
  auto replica = reducing();
  auto view = run_view_of({1, 1}, EpochStage::kRunning);
  view.planned = EpochMembers{{1, 2}, view.members};
  replica.received(view);
  replica.damaged();
  replica.peer_lost({{1, 2}, 0, "refused"});
  EXPECT_EQ(replica.report().suspicion->epoch, (Epoch{1, 1}));
}

TEST(Replica, AVoteOfAnEpochThatIsOverIsDroppedTheGradientsAreNot) {
  auto replica = voting();
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 2}, EpochStage::kJoining))),
      ElementsAre("join 2", "report"));
  EXPECT_EQ(replica.report().vote, std::nullopt);
  replica.joined({1, 2});
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 2}, EpochStage::kRunning))),
      ElementsAre("reduce 2"));
}

TEST(Replica, KeepsAnUndecidedVoteWhileTheCoordinatorIsAway) {
  auto replica = voting();
  // A new term that has no epoch of its own yet.
  auto view = run_view_of({1, 1}, EpochStage::kClosed);
  view.term = 2;
  view.members.clear();
  EXPECT_THAT(names(replica.received(view)), IsEmpty());
  EXPECT_TRUE(replica.report().vote.has_value());
  view.canonical = kSecond;
  view.recent = {kCommit};
  EXPECT_THAT(names(replica.received(view)), ElementsAre("apply"));
}

TEST(Replica, CatchesUpAndInstallsWhatItFetched) {
  auto replica = reducing();
  auto view = committed();
  view.epoch = {1, 3};
  view.members.pop_back();
  EXPECT_THAT(
      names(replica.received(view)), ElementsAre("stop reduce", "catch up 1"));
  EXPECT_THAT(names(replica.fetch_failed()), ElementsAre("catch up 1"));
  EXPECT_THAT(names(replica.fetched(kSecond)), ElementsAre("install"));
  EXPECT_EQ(replica.held(), kFirst);
  // Nothing else begins meanwhile, no matter what is canonical.
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 4}, EpochStage::kJoining))),
      ElementsAre("join 4"));
  EXPECT_THAT(
      names(replica.installed(1, kSecond)),
      ElementsAre("catch up 0", "report"));
  EXPECT_EQ(replica.held(), kSecond);
}

TEST(Replica, StopsCatchingUpWhenItsOwnStateIsCanonicalAgain) {
  Replica replica(kIdentity);
  auto view = committed();
  view.members.clear();
  EXPECT_THAT(
      names(replica.received(view)), ElementsAre("catch up 1", "report"));
  auto back = run_view_of({1, 2}, EpochStage::kClosed);
  EXPECT_THAT(
      names(replica.received(back)),
      UnorderedElementsAre("stop catching up", "join 2", "compute 1"));
  EXPECT_THAT(names(replica.fetched(kSecond)), IsEmpty());
  EXPECT_EQ(replica.held(), kFirst);
}

// ---- a donor that has heard of a later commit ----

const StateId kThird{2, {7, 8}};

// The replica holds kFirst, knows of kSecond and has fetched kThird.
Replica ahead_of_its_view() {
  Replica replica(kIdentity);
  auto view = committed();
  view.members.pop_back();
  EXPECT_THAT(
      names(replica.received(view)), ElementsAre("catch up 1", "report"));
  EXPECT_THAT(names(replica.fetched(kThird)), IsEmpty());
  return replica;
}

// A view, sent to another member, that leads from kSecond to `next`.
RunView after_second(const StateId& next) {
  auto view = committed();
  view.members.pop_back();
  view.canonical = next;
  view.recent.push_back({{{1, 1}, 2}, kSecond, next, 98});
  return view;
}

TEST(Replica, InstallsWhatItFetchedWhenAViewHasNamedIt) {
  auto replica = ahead_of_its_view();
  EXPECT_THAT(
      names(replica.received(after_second(kThird))), ElementsAre("install"));
  replica.installed(1, kThird);
  EXPECT_EQ(replica.held(), kThird);
}

TEST(Replica, InstallsNothingThatAViewHasPassedBy) {
  auto replica = ahead_of_its_view();
  EXPECT_THAT(
      names(replica.received(after_second({2, {9, 9}}))),
      ElementsAre("stop catching up", "catch up 2"));
}

// The state may have been rolled back, and others may wait for this replica, so that no later view
// would come.
TEST(Replica, WaitsForOneViewThatNamesWhatItFetched) {
  auto replica = ahead_of_its_view();
  auto view = committed();
  view.members.pop_back();
  EXPECT_THAT(
      names(replica.received(view)),
      ElementsAre("stop catching up", "catch up 1"));
}

// The run goes on from what all replicas remember.
TEST(Replica, WhoIsAskedWhatItRemembersDropsWhatItFetches) {
  auto replica = ahead_of_its_view();
  RunView question;
  question.asks = true;
  EXPECT_THAT(
      names(replica.received(question)),
      ElementsAre("stop catching up", "report"));
  EXPECT_EQ(replica.report().remembers->canonical, kSecond);
  EXPECT_THAT(names(replica.fetched(kThird)), IsEmpty());
  EXPECT_THAT(names(replica.fetch_failed()), IsEmpty());
  auto view = committed();
  view.term = 2;
  view.members.pop_back();
  EXPECT_THAT(
      names(replica.received(view)), ElementsAre("catch up 1", "report"));
}

TEST(Replica, FollowsWithoutSamples) {
  Replica replica(kIdentity);
  replica.received(run_view_of({1, 1}, EpochStage::kJoining, {}));
  replica.joined({1, 1});
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 1}, EpochStage::kRunning, {}))),
      ElementsAre("reduce 1"));
}

TEST(Replica, ComputesAnewForOtherSamples) {
  auto replica = reducing();
  EXPECT_THAT(
      names(replica.received(
          run_view_of({1, 2}, EpochStage::kJoining, {{0, 8}}))),
      ElementsAre("stop reduce", "join 2", "compute 1"));
}

TEST(Replica, OlderOrdersChangeNothing) {
  auto replica = reducing();
  const auto before = replica;
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 1}, EpochStage::kJoining))),
      IsEmpty());
  auto former = run_view_of({1, 7}, EpochStage::kRunning);
  former.term = 0;
  former.fenced = "by one that was replaced itself";
  EXPECT_THAT(names(replica.received(former)), IsEmpty());
  EXPECT_TRUE(replica == before);
}

TEST(Replica, EndsInOrderWhenTheRunHas) {
  Replica replica(kIdentity);
  auto view = run_view_of({1, 1}, EpochStage::kClosed);
  view.fenced = "the run has ended with step 7";
  view.ended = true;
  const auto tasks = replica.received(view);
  ASSERT_EQ(tasks.size(), 1U);
  EXPECT_EQ(std::get<StopTask>(tasks.front()).reason, "");
}

TEST(Replica, WhatItsProcessesDidTooLateChangesNothing) {
  auto replica = reducing();
  replica.received(run_view_of({1, 2}, EpochStage::kJoining));
  EXPECT_THAT(names(replica.reduced({{1, 1}, 1}, 99)), IsEmpty());
  EXPECT_THAT(names(replica.peer_lost({{1, 1}, 0, "late"})), IsEmpty());
  EXPECT_THAT(names(replica.joined({1, 1})), IsEmpty());
  EXPECT_THAT(names(replica.installed(1, kSecond)), IsEmpty());
  EXPECT_THAT(names(replica.applied(kSecond)), IsEmpty());
  EXPECT_EQ(replica.report().vote, std::nullopt);
}

TEST(Replica, AFencedLifeEnds) {
  auto replica = reducing();
  auto view = run_view_of({1, 1}, EpochStage::kRunning);
  view.fenced = "replaced";
  EXPECT_THAT(
      names(replica.received(view)), ElementsAre("stop reduce", "stop"));
  EXPECT_THAT(
      names(replica.received(run_view_of({1, 2}, EpochStage::kJoining))),
      IsEmpty());
}

TEST(Replica, ACoordinatorOfAnotherRunHasNothingToSay) {
  auto replica = reducing();
  const auto before = replica;
  auto view = run_view_of({2, 1}, EpochStage::kRunning);
  view.run = 8;
  view.fenced = "this is run 8, the replica is of run 7";
  EXPECT_THAT(names(replica.received(view)), IsEmpty());
  EXPECT_TRUE(replica == before);
}

TEST(Replica, WhoIsAskedSaysWhatItRemembers) {
  RunView question;
  question.run = 8;
  question.term = 1;
  question.asks = true;
  EXPECT_THAT(Replica(kIdentity).received(question), IsEmpty());
  auto replica = voting();
  EXPECT_FALSE(replica.report().remembers);
  EXPECT_THAT(names(replica.received(question)), ElementsAre("report"));
  EXPECT_EQ(
      replica.report().remembers, run_view_of({1, 1}, EpochStage::kRunning));
  EXPECT_TRUE(replica.report().vote);
  EXPECT_EQ(replica.report().run, 7U);
  // A coordinator that has the log comes after all.
  EXPECT_THAT(
      names(replica.received(run_view_of({2, 2}, EpochStage::kJoining))),
      ElementsAre("join 2", "report"));
  EXPECT_FALSE(replica.report().remembers);
}

TEST(Replica, APlanMayBeTakenBack) {
  auto replica = reducing();
  auto view = run_view_of({1, 1}, EpochStage::kRunning);
  view.planned = EpochMembers{{1, 2}, view.members};
  replica.received(view);
  replica.received(run_view_of({1, 1}, EpochStage::kRunning));
  EXPECT_FALSE(replica.view().planned.has_value());
}

TEST(Replica, WhatIsDamagedIsFetchedAnewAndLeavesTheEpoch) {
  auto replica = reducing();
  EXPECT_THAT(
      names(replica.damaged()),
      ElementsAre("stop reduce", "catch up 0", "report"));
  EXPECT_EQ(replica.report().held, std::nullopt);
  EXPECT_EQ(replica.report().suspicion->accused, kMe);
  // The same attempt is not reduced twice.
  replica.fetched(kFirst);
  EXPECT_THAT(
      names(replica.installed(1, kFirst)), ElementsAre("compute 1", "report"));
}

TEST(Replica, TellsItsPlaceAndHowMuchEachMemberCounts) {
  Replica replica(kIdentity);
  auto view = run_view_of({1, 1}, EpochStage::kJoining);
  view.members.push_back({5, 50, {}});
  const auto first = replica.received(view);
  const auto compute =
      std::find_if(first.begin(), first.end(), [](const Task& task) {
        return std::holds_alternative<ComputeTask>(task);
      });
  ASSERT_NE(compute, first.end());
  EXPECT_EQ(std::get<ComputeTask>(*compute).replicas, 3);
  EXPECT_EQ(std::get<ComputeTask>(*compute).place, 1);
  replica.joined({1, 1});
  view.stage = EpochStage::kRunning;
  const auto second = replica.received(view);
  ASSERT_TRUE(std::holds_alternative<ReduceTask>(second.front()));
  EXPECT_THAT(
      std::get<ReduceTask>(second.front()).weights, ElementsAre(8, 8, 0));
}

}  // namespace
}  // namespace sherd::ft
