// SPDX-License-Identifier: Apache-2.0
//
// What replicas remember of a lost log, when that is enough, and how a run goes on from it.
#include "ft/protocol/recovery.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <gmock/gmock.h>

#include "ft/protocol/coordinator_script_testing.h"

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CoordinatorOptions recovering_options() {
  auto options = options_of(1, 3);
  options.run = 2;
  options.recovers = true;
  return options;
}

// The report of a replica to a coordinator that has lost the log of `former`.
Report memory_of(CoordinatorScript& former, ReplicaId replica) {
  auto report = former.report(replica);
  report.run = former.view(replica).run;
  report.remembers = former.view(replica);
  return report;
}

class Memories {
 public:
  Memories(
      CoordinatorScript& former, std::initializer_list<ReplicaId> replicas) {
    for (const auto replica : replicas) {
      reports_.push_back(memory_of(former, replica));
    }
  }
  Report& of(ReplicaId replica) {
    return *std::find_if(
        reports_.begin(), reports_.end(),
        [&](const Report& one) { return one.replica == replica; });
  }
  Recovery recover(
      std::map<ReplicaId, std::optional<StateId>> fresh = {},
      int replicas_min = 1) const {
    RecoveryQuestion question;
    for (const auto& one : reports_) {
      question.answers.push_back(&one);
    }
    question.fresh = std::move(fresh);
    question.replicas_min = replicas_min;
    question.replicas_start = 3;
    return recovery_of(question);
  }

 private:
  std::vector<Report> reports_;
};

// Three replicas that have made a step.
CoordinatorScript after_one_step() {
  CoordinatorScript script(options_of(1, 3));
  script.begin({0, 1, 2});
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    script.vote(replica);
  }
  script.apply({0, 1, 2});
  return script;
}

TEST(Recovery, TakesOverWhatAllRemember) {
  auto former = after_one_step();
  const auto recovery = Memories(former, {0, 1, 2}).recover();
  ASSERT_TRUE(recovery.record.has_value()) << recovery.waits_for;
  EXPECT_EQ(recovery.run, 1U);
  EXPECT_EQ(recovery.term, 1U);
  EXPECT_EQ(recovery.record->canonical(), former.view(0).canonical);
  EXPECT_EQ(recovery.record->commits, former.view(0).recent);
  EXPECT_EQ(recovery.record->members, former.view(0).members);
  EXPECT_EQ(recovery.record->consumed, former.coordinator().history().consumed);
  EXPECT_FALSE(recovery.commit.has_value());
}

// ---- who has to answer ----

TEST(Recovery, WaitsForAllThatMayHaveMadeALaterCommit) {
  auto former = after_one_step();
  const auto some = Memories(former, {0, 1}).recover();
  EXPECT_FALSE(some.record.has_value());
  EXPECT_THAT(some.waits_for, HasSubstr("still to come: replica 2"));
}

TEST(Recovery, OneThatIsNoMemberMayHaveBecomeOne) {
  auto former = after_one_step();
  former.say(3);
  former.say(0);
  const auto recovery = Memories(former, {0, 1, 2}).recover();
  EXPECT_THAT(recovery.waits_for, HasSubstr("still to come: replica 3"));
}

TEST(Recovery, OneThatHasGoneLongAgoMayHaveMadeStepsSince) {
  auto former = after_one_step();
  former.lose(2);
  former.wait(kSettle);
  former.join({0, 1});
  former.vote(0);
  former.vote(1);
  former.apply({0, 1});
  const auto recovery = Memories(former, {0, 1}).recover();
  EXPECT_THAT(recovery.waits_for, HasSubstr("still to come: replica 2"));
}

TEST(Recovery, WhoHasStartedAnewIsNotWaitedFor) {
  auto former = after_one_step();
  const auto recovery = Memories(former, {0, 1}).recover({{2, kFirst}});
  EXPECT_TRUE(recovery.record.has_value()) << recovery.waits_for;
}

// The last incarnation may have made steps of which the former one has not heard.
TEST(Recovery, AFormerLifeIsNoAnswer) {
  auto former = after_one_step();
  const auto old = memory_of(former, 2);
  former.report(2).incarnation = 777;
  former.say(2);
  former.say(0);
  Memories memories(former, {0, 1, 2});
  memories.of(2) = old;
  EXPECT_THAT(
      memories.recover().waits_for, HasSubstr("still to come: replica 2"));
}

// The new log starts the count of starts again: the answer with more starts knows less.
TEST(Recovery, ALogThatWasMadeFromReplicasMayBeLostAgain) {
  auto former = after_one_step();
  Memories memories(former, {0, 1, 2});
  for (const ReplicaId replica : {0U, 1U}) {
    memories.of(replica).remembers->term = 1001;
    memories.of(replica).remembers->lives[2].incarnation = 777;
  }
  memories.of(2).remembers->starts = 9;
  EXPECT_THAT(
      memories.recover().waits_for, HasSubstr("still to come: replica 2"));
  EXPECT_TRUE(memories.recover({{2, kFirst}}).record.has_value());
}

TEST(Recovery, WaitsForAsManyAsTheRunBeginsWith) {
  CoordinatorScript former(options_of(1, 2));
  former.begin({0, 1});
  const auto recovery = Memories(former, {0, 1}).recover();
  EXPECT_THAT(recovery.waits_for, HasSubstr("still to come: 1 more, of 3"));
}

TEST(Recovery, OfTwoRunsSomebodyHasToChoose) {
  auto former = after_one_step();
  Memories memories(former, {0, 1, 2});
  memories.of(1).run = 9;
  EXPECT_THAT(
      memories.recover().waits_for,
      HasSubstr("replica 0 is of run 1 and replica 1 of run 9: end those"));
}

TEST(Recovery, WhoHasLoadedANewerStepIsNotOverlooked) {
  auto former = after_one_step();
  const StateId saved{2, {7, 7}};
  const auto recovery = Memories(former, {0, 1}).recover({{2, saved}});
  EXPECT_FALSE(recovery.record.has_value());
  EXPECT_THAT(
      recovery.waits_for,
      HasSubstr("replica 2 has loaded step 2 (00000000), and the "
                "others remember none after step 1"));
}

// All replicas that have heard of the next epoch have died; the vote is in the one before.
TEST(Recovery, WhoHasLoadedAnotherStepThanWasVotedForIsNotOverlooked) {
  auto former = after_one_step();
  former.vote(0);
  Memories memories(former, {0});
  const auto voted = memories.recover({{1, kFirst}, {2, kFirst}}).commit;
  ASSERT_TRUE(voted.has_value());
  const auto same = voted->commit.result;
  EXPECT_TRUE(memories.recover({{1, kFirst}, {2, same}}).record.has_value());
  const StateId other{same.step, {7, 7}};
  EXPECT_THAT(
      memories.recover({{1, kFirst}, {2, other}}).waits_for,
      HasSubstr("replica 2 has loaded step 2"));
}

TEST(Recovery, WhatWasGivenUpIsKnownAsSuch) {
  auto former = after_one_step();
  Memories memories(former, {0, 1, 2});
  const StateId other{1, {7, 7}};
  memories.of(1).held = other;
  EXPECT_THAT(memories.recover().record->given_up, ElementsAre(other));
}

// A checkpoint of a step that was rolled back before the log was lost.
TEST(Recovery, WhatWasLoadedAndLedNowhereIsGivenUpToo) {
  auto former = after_one_step();
  const StateId other{1, {7, 7}};
  const auto last = former.view(0).canonical;
  const auto recovery = Memories(former, {0}).recover({{1, last}, {2, other}});
  EXPECT_THAT(recovery.record->given_up, ElementsAre(other));
}

TEST(Recovery, WhatCannotHaveBeenIsRefusedWithAReason) {
  auto former = after_one_step();
  Memories memories(former, {0, 1, 2});
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    memories.of(replica).remembers->recent[0].base.step = 5;
  }
  EXPECT_THAT(
      memories.recover().waits_for, HasSubstr("[ft] log: expected a commit"));
}

// ---- a step that was voted for ----

TEST(Recovery, AStepThatWasVotedForIsCommittedAsTheLogMayHaveDone) {
  auto former = after_one_step();
  const auto base = former.view(0).canonical;
  former.vote(0);
  former.vote(1);
  Memories memories(former, {0, 1, 2});
  former.vote(2);
  const auto recovery = memories.recover({}, 2);
  ASSERT_TRUE(recovery.commit.has_value()) << recovery.waits_for;
  EXPECT_EQ(recovery.record->canonical(), base);
  EXPECT_EQ(recovery.commit->commit, *former.coordinator().history().commit());
  EXPECT_THAT(recovery.commit->next[0].samples, IsEmpty());
  // A commit needs the minimum of replicas, so the lost log has none with fewer.
  memories.of(1).vote.reset();
  EXPECT_FALSE(memories.recover({}, 2).commit.has_value());
}

TEST(Recovery, OneThatHasDiedSinceMayHaveVoted) {
  auto former = after_one_step();
  former.vote(0);
  const auto recovery = Memories(former, {0, 2}).recover({{1, kFirst}}, 2);
  ASSERT_TRUE(recovery.commit.has_value()) << recovery.waits_for;
  EXPECT_EQ(recovery.commit->commit.result.step, 2);
}

TEST(Recovery, SumsThatDifferAreNotCommitted) {
  auto former = after_one_step();
  former.vote(0, 5);
  former.vote(1, 6);
  const auto recovery = Memories(former, {0, 1, 2}).recover();
  EXPECT_TRUE(recovery.record.has_value()) << recovery.waits_for;
  EXPECT_FALSE(recovery.commit.has_value());
}

TEST(Recovery, AStepOfAnEpochThatIsOverIsNotCommitted) {
  auto former = after_one_step();
  former.vote(0);
  const auto voted = former.report(0).vote;
  former.report(0).vote.reset();
  former.say(0);
  former.lose(2);
  former.wait(kSettle);
  Memories memories(former, {0, 1});
  memories.of(0).vote = voted;
  const auto recovery = memories.recover({{2, kFirst}});
  EXPECT_TRUE(recovery.record.has_value()) << recovery.waits_for;
  EXPECT_FALSE(recovery.commit.has_value());
}

// ---- the coordinator that asks ----

TEST(Recovery, AMemoryBeyondAllRangesIsRefused) {
  auto former = after_one_step();
  const auto refused = [&](const std::function<void(RunView&)>& damage) {
    CoordinatorScript script(recovering_options());
    script.report(0) = memory_of(former, 0);
    damage(*script.report(0).remembers);
    script.say(0);
    return script.view(0).fenced;
  };
  const auto why = HasSubstr("expected steps and terms of a run");
  constexpr auto kLast = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(refused([](RunView& view) { view.canonical.step = kLast; }), why);
  EXPECT_THAT(
      refused([](RunView& view) { view.recent[0].base.step = kLast; }), why);
  EXPECT_THAT(
      refused([](RunView& view) { view.recent[0].result.step = -1; }), why);
  EXPECT_THAT(
      refused([](RunView& view) {
        view.term = std::numeric_limits<std::uint64_t>::max();
      }),
      why);
}

void ask_all(CoordinatorScript& script, CoordinatorScript& former) {
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    script.report(replica) = memory_of(former, replica);
    script.report(replica).remembers.reset();
    script.say(replica);
    EXPECT_TRUE(script.view(replica).asks);
  }
}

void answer(
    CoordinatorScript& script,
    CoordinatorScript& former,
    std::initializer_list<ReplicaId> replicas) {
  for (const auto replica : replicas) {
    script.report(replica) = memory_of(former, replica);
    script.say(replica);
    script.report(replica).remembers.reset();
  }
}

TEST(Recovery, ACoordinatorWithAnEmptyLogGoesOnWhenAllHaveAnswered) {
  auto former = after_one_step();
  CoordinatorScript script(recovering_options());
  ask_all(script, former);
  answer(script, former, {0, 1});
  script.wait(kHold);
  EXPECT_EQ(script.log().size(), 1U);  // Nothing was decided.
  EXPECT_THAT(
      script.coordinator().complaint(),
      HasSubstr("the log is empty: replica 2 has still to say"));
  answer(script, former, {2});
  EXPECT_EQ(script.coordinator().complaint(), "");
  EXPECT_EQ(script.coordinator().history().run, 1U);
  // It does not matter which replica is told first.
  EXPECT_EQ(script.view(0).lives.size(), 3U);
  EXPECT_GT(script.coordinator().history().term, 1000U);
  script.wait(kSettle);
  EXPECT_EQ(script.view(0).canonical, former.view(0).canonical);
  // The computed gradients are used.
  EXPECT_EQ(script.view(0).members, former.view(0).members);
  script.join({0, 1, 2});
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    script.vote(replica);
  }
  EXPECT_EQ(script.view(0).canonical.step, 2);
  EXPECT_EQ(
      script.view(0).consumed.ranges(), (std::vector<SampleRange>{{0, 48}}));
  EXPECT_THAT(
      script.view(0).members[0].samples, ElementsAre(SampleRange{48, 56}));
}

TEST(Recovery, WhoeverVotedHearsOfTheCommit) {
  auto former = after_one_step();
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    former.report(replica).vote =
        Vote{{former.view(0).epoch, 2}, former.view(0).canonical, 5};
  }
  CoordinatorScript script(recovering_options());
  answer(script, former, {0, 1, 2});
  EXPECT_EQ(script.view(0).canonical.step, 2);
  EXPECT_EQ(script.view(0).recent.back().base, former.view(0).canonical);
  EXPECT_EQ(script.coordinator().history().consumed.size(), 48);
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    script.report(replica).held = script.view(0).canonical;
    script.report(replica).vote.reset();
    script.say(replica);
  }
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(
      script.view(0).members[0].samples, ElementsAre(SampleRange{48, 56}));
}

TEST(Recovery, WhatItWritesIsALogToGoOnFrom) {
  auto former = after_one_step();
  CoordinatorScript script(recovering_options());
  answer(script, former, {0, 1, 2});
  History history;
  for (const auto& record : script.log()) {
    append(history, record);
  }
  EXPECT_EQ(history, script.coordinator().history());
  auto options = recovering_options();
  options.run = 9;
  CoordinatorScript next(options, history);
  EXPECT_EQ(next.coordinator().history().run, 1U);
  for (const ReplicaId replica : {0U, 1U, 2U}) {
    next.report(replica) = script.report(replica);
    next.say(replica);
  }
  next.wait(kSettle);
  EXPECT_EQ(next.view(0).canonical, former.view(0).canonical);
  EXPECT_THAT(next.members(0), ElementsAre(0, 1, 2));
}

TEST(Recovery, WhoGoesBeforeTheLastHasAnsweredIsWaitedForAgain) {
  auto former = after_one_step();
  CoordinatorScript script(recovering_options());
  answer(script, former, {0, 1});
  script.lose(1);
  answer(script, former, {2});
  script.wait(kHold);
  EXPECT_EQ(script.log().size(), 1U);
  EXPECT_THAT(
      script.coordinator().complaint(), HasSubstr("still to come: replica 1"));
}

TEST(Recovery, WithoutTheOptionNothingIsCommitted) {
  auto former = after_one_step();
  auto options = recovering_options();
  options.recovers = false;
  CoordinatorScript script(options);
  answer(script, former, {0, 1, 2});
  script.wait(kHold);
  EXPECT_EQ(script.log().size(), 1U);
  EXPECT_THAT(
      script.coordinator().complaint(), HasSubstr("the log is empty, but"));
}

// The state that it has loaded may be newer than all that the others remember.
TEST(Recovery, WhoHasStartedAnewAndGoneIsWaitedFor) {
  auto former = after_one_step();
  CoordinatorScript script(recovering_options());
  script.report(2).incarnation = 777;
  script.report(2).held = StateId{2, {7, 7}};
  script.say(2);
  script.lose(2);
  answer(script, former, {0, 1});
  script.wait(kHold);
  EXPECT_THAT(
      script.coordinator().complaint(), HasSubstr("still to come: replica 2"));
  script.say(2);
  EXPECT_THAT(
      script.coordinator().complaint(),
      HasSubstr("replica 2 has loaded step 2"));
  script.lose(2);
  script.report(2).incarnation = 778;  // It comes without that checkpoint.
  script.report(2).held = kFirst;
  script.say(2);
  EXPECT_EQ(script.coordinator().complaint(), "");
  EXPECT_EQ(script.view(0).canonical, former.view(0).canonical);
}

TEST(Recovery, WhoHasLoadedWhatLedNowhereCatchesUp) {
  auto former = after_one_step();
  CoordinatorScript script(recovering_options());
  script.report(2).incarnation = 777;
  script.report(2).held = StateId{1, {7, 7}};
  script.say(2);
  answer(script, former, {0, 1});
  EXPECT_EQ(script.view(2).canonical, former.view(0).canonical);
  script.report(2).run = 1;  // It has heard of the run.
  script.say(2);
  EXPECT_EQ(script.coordinator().complaint(), "");
  EXPECT_EQ(script.view(2).fenced, "");
}

// The new log does not know that this incarnation was replaced in the lost log.
TEST(Recovery, AFormerLifeThatComesLaterReplacesNobody) {
  auto former = after_one_step();
  CoordinatorScript script(recovering_options());
  answer(script, former, {0, 1, 2});
  script.report(1).incarnation = 7;
  script.say(1);
  EXPECT_THAT(script.view(1).fenced, HasSubstr("was replaced"));
  EXPECT_TRUE(script.coordinator().counts(1, 101));
}

TEST(Recovery, AFormerLifeThatAnsweredFirstIsFenced) {
  auto former = after_one_step();
  const auto old = memory_of(former, 1);
  former.report(1).incarnation = 777;
  former.say(1);
  former.say(0);
  CoordinatorScript script(recovering_options());
  script.report(1) = old;
  script.say(1);
  answer(script, former, {0, 1, 2});
  EXPECT_EQ(script.coordinator().complaint(), "");
  EXPECT_TRUE(script.coordinator().counts(1, 777));
  EXPECT_FALSE(script.coordinator().counts(1, 101));
}

// One of the replicas may be all that is left of a run.
TEST(Recovery, NoRunBeginsWithCheckpointsBeforeAllAreThere) {
  CoordinatorScript script(recovering_options());
  const StateId saved{5, {7, 7}};
  script.report(0).held = saved;
  script.report(1).held = saved;
  script.say(0);
  script.say(1);
  script.wait(std::chrono::hours(1));
  EXPECT_EQ(script.log().size(), 3U);  // The log has the term and the replicas.
  EXPECT_THAT(
      script.coordinator().complaint(),
      HasSubstr("nothing begins before 3 replicas are here"));
  script.say(2);
  script.wait(kSettle);
  EXPECT_EQ(script.coordinator().history().canonical, saved);
}

}  // namespace
}  // namespace sherd::ft
