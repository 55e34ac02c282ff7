// SPDX-License-Identifier: Apache-2.0
//
// What the coordinator decides about links, and about replicas that come back together.
#include <algorithm>
#include <iterator>
#include <gmock/gmock.h>

#include "ft/protocol/coordinator_script_testing.h"

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Duration kAccusations = std::chrono::milliseconds(100);

TEST(CoordinatorLinks, WhoIsBackAMomentAfterTheMinimumTrainsWithIt) {
  CoordinatorScript script(options_of(2, 3));
  script.begin({0, 1, 2});
  script.lose(1);
  script.lose(2);
  script.wait(kSettle);
  script.wait(kHold);
  script.say(1);
  script.wait(kSettle / 2);
  EXPECT_EQ(script.coordinator().stage(), EpochStage::kClosed);
  script.say(2);
  script.wait(kSettle / 2);
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2));
}

std::vector<ReplicaId> planned(const CoordinatorScript& script) {
  std::vector<ReplicaId> names;
  if (const auto& plan = script.view(0).planned) {
    for (const auto& member : plan->members) {
      names.push_back(member.replica);
    }
  }
  return names;
}

// All replicas are in an epoch that they have not joined yet.
CoordinatorScript joining(int replicas_min, int replicas) {
  CoordinatorScript script(options_of(replicas_min, replicas));
  for (int one = 0; one < replicas; ++one) {
    script.say(static_cast<ReplicaId>(one));
  }
  script.wait(kSettle);
  return script;
}

// A ring avoids a link that died in a running epoch as soon as its end is back.
TEST(CoordinatorLinks, ARingOfFourGoesRoundALinkThatIsDead) {
  CoordinatorScript script(options_of(1, 4));
  script.begin({0, 1, 2, 3});
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2, 3));
  script.link_fails(0, 1);
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2, 3));
  script.join({0, 2, 3});
  EXPECT_THAT(planned(script), ElementsAre(0, 2, 1, 3));
  const auto planned = script.view(0).planned->epoch;
  script.join_plan({0, 1, 2, 3});
  for (const ReplicaId one : {0U, 2U, 3U}) {
    script.vote(one);
  }
  EXPECT_EQ(script.view(0).epoch, planned);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2, 1, 3));
  // Former members keep their samples; the replica that comes back follows.
  EXPECT_TRUE(script.view(0).members[2].samples.empty());
  EXPECT_FALSE(script.view(0).members[1].samples.empty());
}

TEST(CoordinatorLinks, TheReceivingEndOfALinkIsLeftOutFirst) {
  auto script = joining(1, 4);
  script.join({2, 3});
  script.wait(kJoin);
  EXPECT_THAT(script.members(2), ElementsAre(0, 2, 3));
  script.join({2, 3});
  script.wait(kJoin);
  // Neither link is needed to explain why 0 has not joined.
  EXPECT_THAT(script.members(2), ElementsAre(1, 2, 3));
}

// ---- replicas whose ring ports are dead, while they report as usual ----

TEST(CoordinatorLinks, OneThatCannotBeReachedAloneIsLeftOutAndNamed) {
  auto script = joining(2, 3);
  script.cannot_reach(0, 1);
  script.cannot_reach(1, 0);
  script.wait(kAccusations);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2));
  script.join({0, 2});
  EXPECT_EQ(script.view(0).stage, EpochStage::kRunning);
  EXPECT_THAT(
      script.notices(),
      ElementsAre("left_out replica 1: it is left out: no ring link between it "
                  "and replica 0 carries anything"));
}

TEST(CoordinatorLinks, TheCommonEndOfTwoDeadLinksIsTheCulprit) {
  auto script = joining(2, 3);
  script.cannot_reach(0, 1);
  script.wait(kAccusations);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2));
  script.cannot_reach(0, 2);  // Nothing that 0 sends arrives.
  script.wait(kAccusations);
  EXPECT_THAT(script.members(0), ElementsAre(1, 2));
  script.join({1, 2});
  EXPECT_THAT(
      script.notices(),
      ElementsAre("left_out replica 0: it is left out: no ring link between it "
                  "and replica 1 and replica 2 carries anything"));
}

TEST(CoordinatorLinks, WhereNoTwoReachEachOtherOneTrainsOn) {
  for (const int count : {2, 3}) {
    auto script = joining(1, count);
    for (int rounds = 0; script.members(0).size() > 1; ++rounds) {
      ASSERT_LT(rounds, 2);
      const auto ring = script.members(0);
      for (std::size_t i = 0; i < ring.size(); ++i) {
        script.cannot_reach(ring[i], ring[(i + 1) % ring.size()]);
      }
      script.wait(kAccusations);
    }
    script.join({0});
    EXPECT_EQ(script.view(0).stage, EpochStage::kRunning);
    script.vote(0);
    EXPECT_EQ(script.view(0).canonical.step, 1);
  }
}

TEST(CoordinatorLinks, WhereTooFewReachEachOtherAllAreTriedAgain) {
  auto script = joining(2, 2);
  for (int times = 0; times < 5; ++times) {
    EXPECT_THAT(script.members(0), ElementsAre(0, 1));
    script.cannot_reach(0, 1);
    script.wait(kAccusations);
    EXPECT_EQ(script.coordinator().stage(), EpochStage::kClosed);
    script.wait(std::chrono::milliseconds(500));
  }
  script.join({0, 1});
  EXPECT_EQ(script.view(0).stage, EpochStage::kRunning);
}

TEST(CoordinatorLinks, TheCulpritKeepsNoHealthyNewcomerOut) {
  auto script = joining(1, 3);
  script.cannot_reach(0, 1);
  script.wait(kAccusations);
  script.join({0, 2});
  EXPECT_THAT(planned(script), ElementsAre(0, 1, 2));
  script.cannot_reach_as_planned(0, 1);
  EXPECT_THAT(planned(script), IsEmpty());
  script.say(3);
  EXPECT_THAT(planned(script), ElementsAre(0, 2, 3));
  script.join_plan({0, 2, 3});
  script.vote(0);
  script.vote(2);
  script.apply({0, 2, 3});
  // Even when its wait is over, others are tried first.
  script.say(4);
  EXPECT_THAT(planned(script), ElementsAre(0, 2, 3, 4));
  // First, other rings avoid its links.
  for (int tries = 0; !planned(script).empty(); ++tries) {
    ASSERT_LT(tries, 4);
    const auto ring = planned(script);
    const auto place = std::find(ring.begin(), ring.end(), 4U);
    script.cannot_reach_as_planned(
        place == ring.begin() ? ring.back() : *std::prev(place), 4);
  }
  script.wait(std::chrono::seconds(5));
  EXPECT_EQ(planned(script).size(), 4U);  // One of the two that failed.
}

TEST(CoordinatorLinks, WhoIsReachedAgainIsBackWithinSeconds) {
  auto script = joining(1, 3);
  script.cannot_reach(0, 1);
  script.wait(kAccusations);
  script.join({0, 2});
  for (int times = 0; times < 20; ++times) {
    ASSERT_THAT(planned(script), ElementsAre(0, 1, 2));
    script.cannot_reach_as_planned(0, 1);
    ASSERT_THAT(planned(script), IsEmpty());
    script.wait(std::chrono::seconds(4));
  }
  script.join_plan({0, 1, 2});
  script.vote(0);
  script.vote(2);
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2));
}

TEST(CoordinatorLinks, ALinkIsSuspectedByWhatItsEndsSay) {
  CoordinatorScript script(options_of(1, 4));
  script.begin({0, 1, 2, 3});
  for (int times = 0; times < 2; ++times) {
    const auto epoch = script.view(0).epoch;
    for (const ReplicaId told : {1U, 2U}) {
      script.report(told).suspicion = Suspicion{epoch, 2, "timed out", 1};
      script.say(told);
    }
    script.wait(kSettle);
    script.join({0, 1, 2, 3});
  }
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 3, 2));
}

// ---- slow links ----

// Each member reports how fast data come from the one before it; `between_0_and_1` is the speed
// between 0 and 1.
void measure(CoordinatorScript& script, std::uint64_t between_0_and_1) {
  constexpr std::uint64_t kFast = 100'000'000;
  const auto ring = script.members(0);
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const auto before = ring[(i + ring.size() - 1) % ring.size()];
    const bool slow = std::max(before, ring[i]) == 1;
    script.report(ring[i]).link_speeds = {
        {before, slow ? between_0_and_1 : kFast}};
  }
}

void commit(CoordinatorScript& script) {
  for (const ReplicaId one : {0U, 1U, 2U, 3U}) {
    script.vote(one);
  }
  script.apply({0, 1, 2, 3});
}

void make_step(CoordinatorScript& script, std::uint64_t between_0_and_1) {
  measure(script, between_0_and_1);
  commit(script);
}

CoordinatorScript after_slow_steps() {
  CoordinatorScript script(options_of(1, 4));
  script.begin({0, 1, 2, 3});
  for (int step = 1; step < LinkHistory::kStepsUntilSlow; ++step) {
    make_step(script, 30'000'000);
    EXPECT_THAT(planned(script), IsEmpty());
  }
  make_step(script, 30'000'000);
  return script;
}

TEST(CoordinatorLinks, TheLowerSpeedOfBothEndsCounts) {
  CoordinatorScript script(options_of(1, 4));
  script.begin({0, 1, 2, 3});
  for (int step = 0; step < LinkHistory::kStepsUntilSlow; ++step) {
    measure(script, 30'000'000);
    // The other end has seen it fast, and nobody has a link with itself.
    auto& told = script.report(0).link_speeds;
    told.push_back({1, 100'000'000});
    told.push_back({0, 1});
    commit(script);
  }
  EXPECT_THAT(script.notices(), ElementsAre(HasSubstr("carries 30 MB/s")));
}

TEST(CoordinatorLinks, MembersGoRoundASlowLinkFromACommitOn) {
  auto script = after_slow_steps();
  EXPECT_THAT(
      script.notices(),
      ElementsAre("slow_links replica 0: its link with replica 1 carries 30 "
                  "MB/s, half as much as most or less: orders of members avoid "
                  "it"));
  EXPECT_THAT(planned(script), ElementsAre(0, 2, 1, 3));
  const auto epoch = script.view(0).planned->epoch;
  script.join_plan({0, 1, 2, 3});
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2, 3));
  make_step(script, 30'000'000);
  EXPECT_EQ(script.view(0).epoch, epoch);
  EXPECT_EQ(script.view(0).stage, EpochStage::kRunning);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2, 1, 3));
  // No member missed a step.
  for (const auto& member : script.view(0).members) {
    EXPECT_FALSE(member.samples.empty());
  }
  EXPECT_EQ(script.view(0).canonical.step, LinkHistory::kStepsUntilSlow + 1);
  for (int step = 0; step < 20; ++step) {
    script.wait(kHold);
    make_step(script, 30'000'000);
    EXPECT_THAT(planned(script), IsEmpty());
  }
  EXPECT_EQ(script.view(0).epoch, epoch);
}

TEST(CoordinatorLinks, WhatComesBeforeTheOtherOrderHasThatOrder) {
  auto script = after_slow_steps();
  script.say(4);
  script.lose(3);  // The epoch ends, and the next one is formed.
  script.wait(kSettle);
  script.join({0, 1, 2});
  // No other order exists.
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2));
  script.report(4).held = script.view(0).canonical;
  script.say(4);
  EXPECT_THAT(planned(script), ElementsAre(0, 2, 1, 4));
}

TEST(CoordinatorLinks, AnOrderThatCannotBeConnectedIsNotPlannedAgainAtOnce) {
  auto script = after_slow_steps();
  script.cannot_reach_as_planned(2, 1);
  EXPECT_THAT(planned(script), IsEmpty());
  make_step(script, 30'000'000);
  EXPECT_THAT(planned(script), IsEmpty());
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2, 3));
  script.pass(std::chrono::seconds(30));
  make_step(script, 30'000'000);
  // A slow link is better than one that carries nothing.
  EXPECT_THAT(planned(script), ElementsAre(0, 2, 3, 1));
}

TEST(CoordinatorLinks, WhoStartsAnewHasGoodLinksAgain) {
  CoordinatorScript script(options_of(1, 4));
  script.begin({0, 1, 2, 3});
  script.link_fails(0, 1);
  script.wait(kSettle);
  script.report(1).incarnation = 201;
  script.report(1).joined = {};
  script.say(1);
  script.join({0, 2, 3});
  EXPECT_THAT(planned(script), ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace sherd::ft
