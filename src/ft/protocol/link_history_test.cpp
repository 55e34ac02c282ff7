// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/link_history.h"

#include <gmock/gmock.h>

namespace sherd::ft {
namespace {

using ::testing::IsEmpty;

constexpr std::uint64_t kFast = 100;

bool bad(const LinkHistory& links, ReplicaId one, ReplicaId other) {
  return links.quality(one, other) == LinkQuality::kBad;
}

bool slow(const LinkHistory& links, ReplicaId one, ReplicaId other) {
  return links.quality(one, other) == LinkQuality::kSlow;
}

void make_bad(LinkHistory& links, ReplicaId one, ReplicaId other) {
  links.suspect(one, other, {1, 1});
  links.suspect(one, other, {1, 2});
}

TEST(LinkHistory, LinksAreBadWhenSuspectedInTwoEpochs) {
  LinkHistory links;
  EXPECT_FALSE(links.suspect(0, 1, {1, 3}));
  EXPECT_FALSE(links.suspect(1, 0, {1, 3}));  // The other end reports it, too.
  EXPECT_FALSE(links.suspect(1, 0, {1, 2}));  // It comes late.
  EXPECT_FALSE(bad(links, 0, 1));
  EXPECT_TRUE(links.suspect(1, 0, {1, 4}));
  EXPECT_TRUE(bad(links, 0, 1));
  EXPECT_TRUE(bad(links, 1, 0));
  EXPECT_FALSE(links.suspect(0, 1, {1, 5}));  // It is bad already.
  EXPECT_FALSE(bad(links, 0, 2));
}

TEST(LinkHistory, LinksAreBadAtOnceWhenTheyCannotBeConnected) {
  LinkHistory links;
  EXPECT_TRUE(links.fail(0, 1, {1, 3}));
  EXPECT_TRUE(bad(links, 1, 0));
  EXPECT_FALSE(links.fail(1, 0, {1, 4}));
  EXPECT_FALSE(links.fail(2, 2, {1, 4}));
}

TEST(LinkHistory, LinksOfWhoStartsAnewAreForgotten) {
  LinkHistory links;
  make_bad(links, 0, 1);
  make_bad(links, 2, 3);
  links.forget(1);
  EXPECT_FALSE(bad(links, 0, 1));
  EXPECT_TRUE(bad(links, 2, 3));
}

TEST(LinkHistory, NobodyIsAtOddsWithItself) {
  LinkHistory links;
  make_bad(links, 1, 1);
  EXPECT_TRUE(links.all().empty());
}

// A ring of five in which the link from 0 to 1 has this speed.
SpeedOfLink ring_with(std::uint64_t speed) {
  return {
      {{0, 1}, speed},
      {{1, 2}, kFast},
      {{2, 3}, kFast},
      {{3, 4}, kFast},
      {{0, 4}, kFast}};
}

void judge(LinkHistory& links, std::uint64_t speed, int steps) {
  for (int i = 0; i < steps; ++i) {
    links.judge(ring_with(speed));
  }
}

LinkHistory with_a_slow_one() {
  LinkHistory links;
  judge(links, 10, LinkHistory::kStepsUntilSlow);
  return links;
}

TEST(LinkHistory, SlowLinksAreHalfAsFastAsMostForManySteps) {
  LinkHistory links;
  for (int step = 1; step < LinkHistory::kStepsUntilSlow; ++step) {
    EXPECT_THAT(links.judge(ring_with(50)), IsEmpty());
    EXPECT_FALSE(slow(links, 0, 1));
  }
  EXPECT_EQ(links.judge(ring_with(50)), (SpeedOfLink{{{0, 1}, 50}}));
  EXPECT_TRUE(slow(links, 0, 1));
  EXPECT_TRUE(slow(links, 1, 0));
  EXPECT_FALSE(slow(links, 1, 2));
  EXPECT_THAT(links.judge(ring_with(50)), IsEmpty());  // It is reported once.
}

TEST(LinkHistory, ALinkThatIsALittleSlowerIsNone) {
  LinkHistory links;
  judge(links, 51, 100);
  EXPECT_FALSE(links.any_slow());
}

TEST(LinkHistory, AMomentIsForgottenAndWhatIsBetweenIsNot) {
  LinkHistory links;
  judge(links, 10, LinkHistory::kStepsUntilSlow - 1);
  judge(links, 60, 5);
  EXPECT_FALSE(links.any_slow());
  judge(links, 10, 1);
  EXPECT_TRUE(links.any_slow());
  LinkHistory others;
  judge(others, 10, LinkHistory::kStepsUntilSlow - 1);
  judge(others, kFast, 1);
  judge(others, 10, LinkHistory::kStepsUntilSlow - 1);
  EXPECT_FALSE(others.any_slow());
}

// Nobody measures a link that is not used, and orders must not alternate.
TEST(LinkHistory, LinksStaySlowUntilAnEndStartsAnew) {
  auto links = with_a_slow_one();
  judge(links, kFast, 100);
  EXPECT_TRUE(slow(links, 0, 1));
  links.forget(3);
  EXPECT_TRUE(slow(links, 0, 1));
  links.forget(1);
  EXPECT_FALSE(slow(links, 0, 1));
}

TEST(LinkHistory, AReplicaToWhichAllLinksAreSlowIsSlowItself) {
  LinkHistory links;
  for (int i = 0; i < 100; ++i) {
    auto speeds = ring_with(10);
    speeds[{1, 2}] = 10;
    links.judge(speeds);
  }
  EXPECT_THAT(links.all(), IsEmpty());
}

TEST(LinkHistory, OfTwoLinksNobodyKnowsWhatIsUsual) {
  LinkHistory links;
  for (int i = 0; i < 100; ++i) {
    links.judge({{{0, 1}, 10}, {{1, 2}, kFast}});
    links.judge({});
  }
  EXPECT_THAT(links.all(), IsEmpty());
}

TEST(LinkHistory, ASlowLinkThatFailsIsBadAndStaysSo) {
  auto links = with_a_slow_one();
  EXPECT_FALSE(bad(links, 0, 1));
  EXPECT_TRUE(links.fail(1, 0, {1, 1}));
  EXPECT_TRUE(bad(links, 0, 1));
  EXPECT_TRUE(links.any_slow());
}

TEST(LinkHistory, ASuspicionOutlivesThatALinkIsFast) {
  LinkHistory links;
  links.suspect(0, 1, {1, 1});
  judge(links, 10, 1);
  judge(links, kFast, 1);
  EXPECT_TRUE(links.suspect(0, 1, {1, 2}));
}

TEST(LinkHistory, MadeUpLinksFillNoMemory) {
  LinkHistory suspected;
  LinkHistory measured;
  SpeedOfLink speeds;
  for (ReplicaId one = 0; one < 200; ++one) {
    speeds[{one, 5000}] = kFast;
    for (ReplicaId other = 1000; other < 1200; ++other) {
      suspected.suspect(one, other, {1, 1});
      speeds[{one, other}] = (one + other) % 3 == 0 ? 1 : kFast;
    }
  }
  measured.judge(speeds);
  measured.judge(speeds);
  EXPECT_EQ(suspected.all().size(), 8192U);
  EXPECT_EQ(measured.all().size(), 8192U);
}

}  // namespace
}  // namespace sherd::ft
