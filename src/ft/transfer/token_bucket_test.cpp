// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/token_bucket.h"

#include <random>
#include <gtest/gtest.h>

namespace sherd::ft::transfer {
namespace {

using namespace std::chrono_literals;

TEST(TokenBucket, NeverLetsOneWaitWithoutALimit) {
  TokenBucket bucket(0);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(bucket.wait(Instant(i)), 0s);
    bucket.take(1U << 30U, Instant(i));
  }
}

TEST(TokenBucket, LetsOneWaitAsLongAsWhatWasSentTakes) {
  TokenBucket bucket(1000);
  EXPECT_EQ(bucket.wait(Instant(100s)), 0s);
  bucket.take(500, Instant(100s));  // 100 of them were saved up.
  EXPECT_EQ(bucket.wait(Instant(100s)), 400ms);
  EXPECT_EQ(bucket.wait(Instant(100s + 150ms)), 250ms);
  EXPECT_EQ(bucket.wait(Instant(100s + 400ms)), 0s);
}

TEST(TokenBucket, KeepsTheRateWhateverIsSentWhen) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  constexpr double kRate = 1e6;
  constexpr std::uint64_t kLargest = 100'000;
  TokenBucket bucket(static_cast<std::uint64_t>(kRate));
  Instant now(1h);
  std::uint64_t sent = 0;
  for (int i = 0; i < 1000; ++i) {
    now += bucket.wait(now);
    EXPECT_EQ(bucket.wait(now), 0s);
    const std::uint64_t count = random() % kLargest;
    bucket.take(count, now);
    sent += count;
    if (random() % 4 == 0) {
      now += Duration(static_cast<std::int64_t>(random() % 50'000'000));
    }
    ASSERT_LE(
        static_cast<double>(sent),
        kRate * (seconds(now - Instant(1h)) + 0.1) + kLargest);
  }
}

}  // namespace
}  // namespace sherd::ft::transfer
