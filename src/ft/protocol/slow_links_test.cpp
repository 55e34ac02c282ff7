// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/slow_links.h"

#include <gmock/gmock.h>

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kFast = 100;

// A ring of five in which the link from 0 to 1 has this speed.
std::vector<MeasuredLink> ring_with(std::uint64_t speed) {
  return {
      {1, 0, speed},
      {2, 1, kFast},
      {3, 2, kFast},
      {4, 3, kFast},
      {0, 4, kFast}};
}

void judge(SlowLinks& links, std::uint64_t speed, int steps) {
  for (int i = 0; i < steps; ++i) {
    links.judge(ring_with(speed));
  }
}

SlowLinks with_a_slow_one() {
  SlowLinks links;
  judge(links, 10, SlowLinks::kStepsUntilSlow);
  return links;
}

TEST(SlowLinks, AreHalfAsFastAsMostForManySteps) {
  SlowLinks links;
  for (int step = 1; step < SlowLinks::kStepsUntilSlow; ++step) {
    EXPECT_THAT(links.judge(ring_with(50)), IsEmpty());
    EXPECT_FALSE(links.slow(0, 1));
  }
  const auto found = links.judge(ring_with(50));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].one, 0U);
  EXPECT_EQ(found[0].other, 1U);
  EXPECT_EQ(found[0].bytes_per_s, 50U);
  EXPECT_TRUE(links.slow(0, 1));
  EXPECT_TRUE(links.slow(1, 0));
  EXPECT_FALSE(links.slow(1, 2));
  EXPECT_THAT(links.judge(ring_with(50)), IsEmpty());  // It is reported once.
}

TEST(SlowLinks, ALinkThatIsALittleSlowerIsNone) {
  SlowLinks links;
  judge(links, 51, 100);
  EXPECT_FALSE(links.any());
}

TEST(SlowLinks, AMomentIsForgottenAndWhatIsBetweenIsNot) {
  SlowLinks links;
  judge(links, 10, SlowLinks::kStepsUntilSlow - 1);
  judge(links, 60, 5);
  EXPECT_FALSE(links.any());
  judge(links, 10, 1);
  EXPECT_TRUE(links.any());
  SlowLinks others;
  judge(others, 10, SlowLinks::kStepsUntilSlow - 1);
  judge(others, kFast, 1);
  judge(others, 10, SlowLinks::kStepsUntilSlow - 1);
  EXPECT_FALSE(others.any());
}

// Nobody measures a link that is not used, and orders must not alternate.
TEST(SlowLinks, StaySlowUntilAnEndStartsAnew) {
  auto links = with_a_slow_one();
  judge(links, kFast, 100);
  EXPECT_TRUE(links.slow(0, 1));
  links.forget(3);
  EXPECT_TRUE(links.slow(0, 1));
  links.forget(1);
  EXPECT_FALSE(links.slow(0, 1));
}

TEST(SlowLinks, AReplicaToWhichAllLinksAreSlowIsSlowItself) {
  SlowLinks links;
  for (int i = 0; i < 100; ++i) {
    links.judge(
        {{1, 0, 10}, {2, 1, 10}, {3, 2, kFast}, {4, 3, kFast}, {0, 4, kFast}});
  }
  EXPECT_THAT(links.all(), IsEmpty());
}

TEST(SlowLinks, OfTwoLinksNobodyKnowsWhatIsUsual) {
  SlowLinks links;
  for (int i = 0; i < 100; ++i) {
    links.judge({{1, 0, 10}, {2, 1, kFast}});
    links.judge({});
  }
  EXPECT_THAT(links.all(), IsEmpty());
}

TEST(SlowLinks, TheLowerSpeedOfBothEndsCounts) {
  SlowLinks links;
  for (int i = 0; i < SlowLinks::kStepsUntilSlow; ++i) {
    auto both = ring_with(kFast);
    both.push_back({0, 1, 10});
    links.judge(both);
  }
  EXPECT_TRUE(links.slow(0, 1));
}

TEST(SlowLinks, MadeUpOnesFillNoMemory) {
  SlowLinks links;
  std::vector<MeasuredLink> all;
  for (ReplicaId one = 0; one < 100; ++one) {
    all.push_back({one, 5000, kFast});
    for (ReplicaId other = 1000; other < 1100; ++other) {
      all.push_back({one, other, (one + other) % 3 == 0 ? 1 : kFast});
      all.push_back({one, one, 0});
    }
  }
  for (int i = 0; i < 3; ++i) {
    links.judge(all);
  }
  EXPECT_LE(links.all().size(), 4096U);
  EXPECT_GT(links.all().size(), 0U);
}

}  // namespace
}  // namespace sherd::ft
