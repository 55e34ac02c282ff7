// SPDX-License-Identifier: Apache-2.0
//
// What the coordinator decides about links, and about those that come back together.
#include <gmock/gmock.h>

#include "ft/protocol/coordinator_script_testing.h"

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;

TEST(CoordinatorLinks, WhoIsBackAMomentAfterTheMinimumTrainsWithIt) {
  CoordinatorScript script(options_of(2, 3));
  script.begin({0, 1, 2});
  script.lose(1);
  script.lose(2);
  script.wait(kSettle);
  script.wait(kHold);
  script.say(1);
  script.wait(kSettle / 2);
  EXPECT_EQ(script.coordinator().phase(), Coordinator::Phase::kForming);
  script.say(2);
  script.wait(kSettle / 2);
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2));
}

// Joined by all but those whose link is dead.
TEST(CoordinatorLinks, ARingOfFourGoesRoundALinkThatWasSuspectedTwice) {
  CoordinatorScript script(options_of(1, 4));
  script.begin({0, 1, 2, 3});
  EXPECT_THAT(script.members(0), ElementsAre(0, 1, 2, 3));
  script.link_fails(0, 1);
  script.hang(1);
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2, 3));
  script.join({0, 2, 3});
  script.report(1).progress.serial = 1;
  script.say(1);
  ASSERT_TRUE(script.view(0).planned.has_value());
  for (const ReplicaId connected : {2U, 3U}) {
    script.report(connected).joined = script.view(0).planned->epoch;
    script.say(connected);
  }
  script.wait(kJoin);
  // Neither end is to blame: the next plan is there, and avoids the link.
  ASSERT_TRUE(script.view(0).planned.has_value());
  std::vector<ReplicaId> ring;
  for (const auto& member : script.view(0).planned->members) {
    ring.push_back(member.replica);
  }
  EXPECT_THAT(ring, ElementsAre(0, 2, 1, 3));
  const auto planned = script.view(0).planned->epoch;
  for (const ReplicaId one : {0U, 1U, 2U, 3U}) {
    script.report(one).joined = planned;
    script.say(one);
  }
  for (const ReplicaId one : {0U, 2U, 3U}) {
    script.vote(one);
  }
  EXPECT_EQ(script.view(0).epoch, planned);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2, 1, 3));
  // Who was there goes on with its samples, who comes follows.
  EXPECT_TRUE(script.view(0).members[2].samples.empty());
  EXPECT_FALSE(script.view(0).members[1].samples.empty());
}

TEST(CoordinatorLinks, BothEndsOfALinkThatFailsOnceAreLeftOutForAWhile) {
  CoordinatorScript script(options_of(1, 4));
  for (const ReplicaId one : {0U, 1U, 2U, 3U}) {
    script.say(one);
  }
  script.wait(kSettle);
  script.join({2, 3});
  script.wait(kJoin);
  EXPECT_THAT(script.members(2), ElementsAre(2, 3));
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

TEST(CoordinatorLinks, WhoStartsAnewHasGoodLinksAgain) {
  CoordinatorScript script(options_of(1, 4));
  script.begin({0, 1, 2, 3});
  script.link_fails(0, 1);
  script.report(0).suspicion = Suspicion{{1, 1}, 3, "checksum", {}};
  script.say(0);
  script.wait(kSettle);
  script.link_fails(0, 1);
  script.report(1).incarnation = 201;
  script.say(1);
  script.report(0).suspicion =
      Suspicion{script.view(0).epoch, 3, "checksum", {}};
  script.say(0);
  script.wait(kSettle);
  EXPECT_THAT(script.members(0), ElementsAre(0, 2, 3));
  script.join({0, 2, 3});
  ASSERT_TRUE(script.view(0).planned.has_value());
  EXPECT_EQ(script.view(0).planned->members[1].replica, 1U);
}

}  // namespace
}  // namespace sherd::ft
