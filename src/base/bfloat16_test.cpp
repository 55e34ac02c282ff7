// SPDX-License-Identifier: Apache-2.0
#include "base/bfloat16.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>
#include <gtest/gtest.h>

namespace sherd {
namespace {

float widened(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

// The definition: of the two neighbours the nearer one, or the even one if both are equally near.
std::uint16_t nearest(float value) {
  if (std::isnan(value)) {
    return 0x7fc0;
  }
  const auto below =
      static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U);
  if (std::isinf(value) || widened(below) == value) {
    return below;
  }
  const auto above = static_cast<std::uint16_t>(below + 1);
  // Above the largest number, the next step would have been as wide.
  const double step = std::isinf(widened(above))
      ? std::abs(widened(below)) - std::abs(widened(below - 1))
      : std::abs(static_cast<double>(widened(above)) - widened(below));
  const double over = std::abs(static_cast<double>(value) - widened(below));
  if (over != step / 2) {
    return over < step / 2 ? below : above;
  }
  return below % 2 == 0 ? below : above;
}

TEST(BFloat16, EveryNumberIsWidenedAndComesBack) {
  std::vector<std::uint16_t> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::uint16_t>(i);
  }
  std::vector<float> wide(all.size());
  widen_bfloat16(all.data(), all.size(), wide.data());
  std::vector<std::uint16_t> back(all.size());
  narrow_to_bfloat16(wide.data(), wide.size(), back.data());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(
        std::bit_cast<std::uint32_t>(wide[i]),
        std::bit_cast<std::uint32_t>(widened(all[i])));
    EXPECT_EQ(back[i], std::isnan(wide[i]) ? 0x7fc0 : all[i]);
  }
}

TEST(BFloat16, RoundsToTheNearestAndTiesToTheEvenOne) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::vector<float> values = {
      0.0F,
      -0.0F,
      std::numeric_limits<float>::denorm_min(),
      std::numeric_limits<float>::max(),
      std::numeric_limits<float>::lowest(),
      std::numeric_limits<float>::infinity(),
      -std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::quiet_NaN()};
  for (int i = 0; i < 20'000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    values.push_back(std::bit_cast<float>(bits));
    values.push_back(std::bit_cast<float>((bits & 0xffff0000U) | 0x8000U));
  }
  std::vector<std::uint16_t> found(values.size());
  narrow_to_bfloat16(values.data(), values.size(), found.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(found[i], nearest(values[i])) << values[i];
  }
}

// Vectors must stop at the end of the array.
TEST(BFloat16, NothingBeyondTheCountIsWritten) {
  for (std::size_t count = 0; count < 40; ++count) {
    const std::vector<std::uint16_t> from(count + 1, 0x3f80);
    std::vector<float> wide(count + 1, 7.0F);
    widen_bfloat16(from.data(), count, wide.data());
    EXPECT_EQ(wide[count], 7.0F);
    std::vector<std::uint16_t> back(count + 1, 7);
    narrow_to_bfloat16(wide.data(), count, back.data());
    EXPECT_EQ(back[count], 7);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(back[i], 0x3f80);
    }
  }
}

// Sums are made one after another in fp32, whatever vectors there are; also in place.
TEST(BFloat16, SumsAreRoundedOnce) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const std::size_t count : {0, 1, 63, 64, 65, 127, 128, 129, 1000}) {
    for (const std::size_t inputs : {1, 2, 3, 7}) {
      std::vector<std::vector<std::uint16_t>> numbers(inputs);
      std::vector<const std::uint16_t*> pointers;
      for (auto& one : numbers) {
        for (std::size_t i = 0; i < count; ++i) {
          one.push_back(static_cast<std::uint16_t>(random()));
        }
        pointers.push_back(one.data());
      }
      std::vector<std::uint16_t> expected;
      for (std::size_t i = 0; i < count; ++i) {
        float sum = widened(numbers[0][i]);
        for (std::size_t r = 1; r < inputs; ++r) {
          sum += widened(numbers[r][i]);
        }
        expected.push_back(nearest(sum));
      }
      std::vector<float> exact(count);
      sum_bfloat16(pointers, 0, count, exact.data());
      std::vector<std::uint16_t> rounded(count);
      narrow_to_bfloat16(exact.data(), count, rounded.data());
      EXPECT_EQ(rounded, expected);
      if (count > 7) {
        std::vector<float> rest(count - 7);
        sum_bfloat16(pointers, 7, rest.size(), rest.data());
        narrow_to_bfloat16(rest.data(), rest.size(), rounded.data());
        EXPECT_EQ(rounded[0], expected[7]);
        EXPECT_EQ(rounded[rest.size() - 1], expected[count - 1]);
      }
      std::vector<std::uint16_t> found(count + 1, 7);
      sum_bfloat16(pointers, count, found.data());
      EXPECT_EQ(found.back(), 7);  // Nothing after the count is written.
      found.pop_back();
      EXPECT_EQ(found, expected);
      sum_bfloat16(pointers, count, numbers.back().data());
      EXPECT_EQ(numbers.back(), expected);
    }
  }
}

}  // namespace
}  // namespace sherd
