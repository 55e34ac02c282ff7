// SPDX-License-Identifier: Apache-2.0
#include "exchange/buffer_pool.h"
#include "exchange/shared_layout.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <gtest/gtest.h>

namespace sherd::exchange {
namespace {

TEST(BufferPool, LendsAlignedMemoryThatCanBeWritten) {
  BufferPool pool;
  void* memory = pool.borrow(3 * kPage + 5);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % kPage, 0U);
  std::memset(memory, 7, 3 * kPage + 5);
  EXPECT_EQ(pool.lent_bytes(), 3 * kPage + 5);
  pool.give_back(memory);
  EXPECT_EQ(pool.lent_bytes(), 0);
}

TEST(BufferPool, KeepsWhatComesBackForTheSameSize) {
  BufferPool pool;
  void* first = pool.borrow(1000);
  pool.give_back(first);
  EXPECT_EQ(pool.allocated_bytes(), 1000);
  EXPECT_EQ(pool.borrow(1000), first);
  EXPECT_NE(pool.borrow(1000), first);  // That one is lent.
  EXPECT_EQ(pool.allocated_bytes(), 2000);
}

TEST(BufferPool, NothingCountsNothing) {
  BufferPool pool(100);
  void* all = pool.borrow(100);
  void* none = pool.borrow(0);
  void* another = pool.borrow(0);
  EXPECT_NE(none, nullptr);
  EXPECT_NE(none, another);
  EXPECT_EQ(pool.lent_bytes(), 100);
  EXPECT_EQ(pool.allocated_bytes(), 100);
  pool.give_back(none);
  pool.give_back(another);
  pool.give_back(all);
  pool.trim(0);
  EXPECT_EQ(pool.allocated_bytes(), 0);
}

TEST(BufferPool, TrimsLargestFirstAndNothingThatIsLent) {
  BufferPool pool;
  void* small = pool.borrow(100);
  void* large = pool.borrow(5000);
  void* lent = pool.borrow(9000);
  pool.give_back(small);
  pool.give_back(large);
  pool.trim(9100);
  EXPECT_EQ(pool.allocated_bytes(), 9100);
  EXPECT_EQ(pool.borrow(100), small);
  pool.trim(0);
  EXPECT_EQ(pool.allocated_bytes(), 9100);
  std::memset(lent, 1, 9000);
  EXPECT_EQ(pool.allocated_bytes_peak(), 14100);
}

TEST(BufferPool, ALimitMakesKeptBlocksGoFirst) {
  BufferPool pool(1000);
  pool.give_back(pool.borrow(600));
  void* other = pool.borrow(700);
  EXPECT_EQ(pool.allocated_bytes(), 700);
  EXPECT_EQ(pool.allocated_bytes_peak(), 700);
  pool.set_bytes_max(1200);
  pool.give_back(pool.borrow(500));
  EXPECT_EQ(pool.allocated_bytes(), 1200);
  pool.give_back(other);
}

TEST(SlotPoolDeathTest, AbortsAboveTheLimit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        BufferPool pool(1000);
        (void)pool.borrow(600);
        (void)pool.borrow(500);
      },
      "600 bytes are lent, 500 more would exceed 1000");
}

TEST(BufferPool, NeverExceedsItsLimitNorMixesUpBlocks) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const std::int64_t limit = 20'000;
    BufferPool pool(limit);
    std::map<char*, std::pair<std::int64_t, char>> lent;
    std::int64_t lent_bytes = 0;
    for (int step = 0; step < 300; ++step) {
      const auto bytes = static_cast<std::int64_t>(random() % 8) * 1000;
      if (random() % 2 == 0 && lent_bytes + bytes <= limit) {
        auto* memory = static_cast<char*>(pool.borrow(bytes));
        const auto mark = static_cast<char>(random() % 100);
        std::memset(memory, mark, static_cast<std::size_t>(bytes));
        ASSERT_TRUE(lent.emplace(memory, std::pair(bytes, mark)).second);
        lent_bytes += bytes;
      } else if (!lent.empty()) {
        const auto [memory, what] = *lent.begin();
        for (std::int64_t i = 0; i < what.first; ++i) {
          ASSERT_EQ(memory[i], what.second);
        }
        lent_bytes -= what.first;
        lent.erase(memory);
        pool.give_back(memory);
      }
      ASSERT_EQ(pool.lent_bytes(), lent_bytes);
      ASSERT_LE(pool.allocated_bytes(), limit);
      ASSERT_GE(pool.allocated_bytes(), lent_bytes);
    }
    EXPECT_LE(pool.allocated_bytes_peak(), limit);
  }
}

}  // namespace
}  // namespace sherd::exchange
