// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/float_sum.h"

#include <bit>
#include <cstdint>
#include <random>
#include <vector>
#include <gtest/gtest.h>

namespace sherd::c10d_shm {
namespace {

using Floats = std::vector<float>;

std::vector<std::uint32_t> bits_of(const Floats& numbers) {
  std::vector<std::uint32_t> bits;
  for (const float number : numbers) {
    bits.push_back(std::bit_cast<std::uint32_t>(number));
  }
  return bits;
}

// The bits of one addition after another, whichever vectors are used; vectors and blocks end at or
// before the arrays' ends; in place of any input, too.
TEST(FloatSum, AddsInOrder) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (const std::size_t count : {0, 1, 15, 16, 17, 1023, 1024, 1025, 3000}) {
    for (const std::size_t inputs : {1, 2, 3, 9}) {
      std::vector<Floats> numbers(inputs, Floats(count + 1));
      std::vector<const float*> pointers;
      for (Floats& one : numbers) {
        for (float& number : one) {
          number = normal(random);
        }
        pointers.push_back(one.data());
      }
      Floats expected = numbers[0];
      for (std::size_t r = 1; r < inputs; ++r) {
        for (std::size_t i = 0; i < count; ++i) {
          expected[i] += numbers[r][i];
        }
      }
      Floats found(count + 1, expected[count]);
      sum_floats(pointers, count, found.data());
      EXPECT_EQ(bits_of(found), bits_of(expected));
      const std::size_t target = random() % inputs;
      numbers[target][count] = expected[count];
      sum_floats(pointers, count, numbers[target].data());
      EXPECT_EQ(bits_of(numbers[target]), bits_of(expected));
    }
  }
}

}  // namespace
}  // namespace sherd::c10d_shm
