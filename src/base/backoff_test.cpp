// SPDX-License-Identifier: Apache-2.0
#include "base/backoff.h"

#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

std::vector<Duration> next_waits(Backoff& backoff, int count) {
  std::vector<Duration> waits;
  waits.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    waits.push_back(backoff.next());
  }
  return waits;
}

TEST(Backoff, DoublesFromMinToMaxAndBeginsAnew) {
  Backoff backoff({.first = 50ms, .longest = 300ms});
  EXPECT_THAT(
      next_waits(backoff, 5), ElementsAre(50ms, 100ms, 200ms, 300ms, 300ms));
  backoff.reset();
  EXPECT_EQ(backoff.next(), 50ms);
}

TEST(Backoff, StartsAtNothingWhenItIsTold) {
  Backoff backoff({.first = 50ms, .longest = 150ms, .starts_at_zero = true});
  EXPECT_THAT(
      next_waits(backoff, 5), ElementsAre(0ms, 50ms, 100ms, 150ms, 150ms));
  backoff.reset();
  EXPECT_THAT(next_waits(backoff, 2), ElementsAre(0ms, 50ms));
}

TEST(Backoff, WaitsAtLeastHalfWhateverTheRandomNumber) {
  for (const std::uint64_t random :
       {std::uint64_t{1}, std::uint64_t{12345678901}, ~std::uint64_t{0},
        std::uint64_t{50000000}, std::uint64_t{50000001}}) {
    Backoff backoff({.first = 100ms, .longest = 100ms});
    const Duration wait = backoff.next_jittered(random);
    EXPECT_GE(wait, 50ms);
    EXPECT_LE(wait, 100ms);
  }
  Backoff least({.first = 100ms, .longest = 100ms});
  EXPECT_EQ(least.next_jittered(50000000), 50ms);
}

}  // namespace
}  // namespace sherd
