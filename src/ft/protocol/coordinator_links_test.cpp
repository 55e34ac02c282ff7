// SPDX-License-Identifier: Apache-2.0
//
// What the coordinator decides about links, and about those that come back together.
#include <gmock/gmock.h>

#include "ft/protocol/coordinator_play_testing.h"

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;

TEST(CoordinatorLinks, WhoIsBackAMomentAfterTheMinimumTrainsWithIt) {
  Play play(options_of(2, 3));
  play.begin({0, 1, 2});
  play.lose(1);
  play.lose(2);
  play.wait(kSettle);
  play.wait(kHold);
  play.say(1);
  play.wait(kSettle / 2);
  EXPECT_EQ(play.coordinator().phase(), Coordinator::Phase::kForming);
  play.say(2);
  play.wait(kSettle / 2);
  EXPECT_THAT(play.members(0), ElementsAre(0, 1, 2));
}

// Joined by all but those whose link is dead.
TEST(CoordinatorLinks, ARingOfFourGoesRoundALinkThatWasSuspectedTwice) {
  Play play(options_of(1, 4));
  play.begin({0, 1, 2, 3});
  EXPECT_THAT(play.members(0), ElementsAre(0, 1, 2, 3));
  play.link_fails(0, 1);
  play.hang(1);
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0, 2, 3));
  play.join({0, 2, 3});
  play.report(1).progress.serial = 1;
  play.say(1);
  ASSERT_TRUE(play.order(0).planned.has_value());
  for (const ReplicaId connected : {2U, 3U}) {
    play.report(connected).joined = play.order(0).planned->epoch;
    play.say(connected);
  }
  play.wait(kJoin);
  // Neither end is to blame: the next plan is there, and avoids the link.
  ASSERT_TRUE(play.order(0).planned.has_value());
  std::vector<ReplicaId> ring;
  for (const auto& member : play.order(0).planned->members) {
    ring.push_back(member.replica);
  }
  EXPECT_THAT(ring, ElementsAre(0, 2, 1, 3));
  const auto planned = play.order(0).planned->epoch;
  for (const ReplicaId one : {0U, 1U, 2U, 3U}) {
    play.report(one).joined = planned;
    play.say(one);
  }
  for (const ReplicaId one : {0U, 2U, 3U}) {
    play.vote(one);
  }
  EXPECT_EQ(play.order(0).epoch, planned);
  EXPECT_THAT(play.members(0), ElementsAre(0, 2, 1, 3));
  // Who was there goes on with its samples, who comes follows.
  EXPECT_TRUE(play.order(0).members[2].samples.empty());
  EXPECT_FALSE(play.order(0).members[1].samples.empty());
}

TEST(CoordinatorLinks, BothEndsOfALinkThatFailsOnceAreLeftOutForAWhile) {
  Play play(options_of(1, 4));
  for (const ReplicaId one : {0U, 1U, 2U, 3U}) {
    play.say(one);
  }
  play.wait(kSettle);
  play.join({2, 3});
  play.wait(kJoin);
  EXPECT_THAT(play.members(2), ElementsAre(2, 3));
}

TEST(CoordinatorLinks, ALinkIsSuspectedByWhatItsEndsSay) {
  Play play(options_of(1, 4));
  play.begin({0, 1, 2, 3});
  for (int times = 0; times < 2; ++times) {
    const auto epoch = play.order(0).epoch;
    for (const ReplicaId told : {1U, 2U}) {
      play.report(told).suspicion = Suspicion{epoch, 2, "timed out", 1};
      play.say(told);
    }
    play.wait(kSettle);
    play.join({0, 1, 2, 3});
  }
  EXPECT_THAT(play.members(0), ElementsAre(0, 1, 3, 2));
}

TEST(CoordinatorLinks, WhoStartsAnewHasGoodLinksAgain) {
  Play play(options_of(1, 4));
  play.begin({0, 1, 2, 3});
  play.link_fails(0, 1);
  play.report(0).suspicion = Suspicion{{1, 1}, 3, "checksum", {}};
  play.say(0);
  play.wait(kSettle);
  play.link_fails(0, 1);
  play.report(1).incarnation = 201;
  play.say(1);
  play.report(0).suspicion = Suspicion{play.order(0).epoch, 3, "checksum", {}};
  play.say(0);
  play.wait(kSettle);
  EXPECT_THAT(play.members(0), ElementsAre(0, 2, 3));
  play.join({0, 2, 3});
  ASSERT_TRUE(play.order(0).planned.has_value());
  EXPECT_EQ(play.order(0).planned->members[1].replica, 1U);
}

}  // namespace
}  // namespace sherd::ft
