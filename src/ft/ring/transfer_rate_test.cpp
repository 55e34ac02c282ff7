// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/peer_link.h"

#include <gtest/gtest.h>

namespace sherd::ft::ring {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kFrame = std::size_t{1} << 20U;

// Receives frames of 1 MiB that each take `time`, with a pause of the same length after each.
void receive(TransferRate& rate, Instant& now, int frames, Duration time) {
  for (int i = 0; i < frames; ++i) {
    rate.begins(now);
    now += time;
    rate.ends(kFrame, now);
    now += time;
  }
}

TEST(TransferRate, IsKnownOnceEnoughHasCome) {
  TransferRate rate;
  Instant now{};
  receive(rate, now, 3, milliseconds(10));
  EXPECT_FALSE(rate.bytes_per_s().has_value());
  receive(rate, now, 1, milliseconds(10));
  ASSERT_TRUE(rate.bytes_per_s().has_value());
  // The time between frames does not count.
  EXPECT_EQ(*rate.bytes_per_s(), kFrame * 100);
}

TEST(TransferRate, ShortFramesSayNothing) {
  TransferRate rate;
  Instant now{};
  for (int i = 0; i < 10000; ++i) {
    rate.begins(now);
    now += milliseconds(1);
    rate.ends(TransferRate::kFrameBytesMin - 1, now);
  }
  EXPECT_FALSE(rate.bytes_per_s().has_value());
}

TEST(TransferRate, ForgetsWhatWasLongAgo) {
  TransferRate rate;
  Instant now{};
  receive(rate, now, 1000, milliseconds(2));
  receive(rate, now, 200, milliseconds(100));
  EXPECT_LT(*rate.bytes_per_s(), kFrame * 11);
  EXPECT_GE(*rate.bytes_per_s(), kFrame * 10);
}

TEST(TransferRate, WhatTakesNoTimeIsAsFastAsCanBeTold) {
  TransferRate rate;
  Instant now{};
  receive(rate, now, 10, Duration(0));
  EXPECT_EQ(*rate.bytes_per_s(), TransferRate::kFastest);
}

}  // namespace
}  // namespace sherd::ft::ring
