// SPDX-License-Identifier: Apache-2.0
#include "launch/start_plan.h"

#include <algorithm>
#include <set>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<CpuCore> plain_cores(int count) {
  std::vector<CpuCore> cores;
  for (int i = 0; i < count; ++i) {
    cores.push_back({i, 0, i});
  }
  return cores;
}

TEST(Cores, AreDividedDisjointlyCompletelyAndEvenly) {
  for (int count = 1; count <= 17; ++count) {
    for (int ranks = 1; ranks <= count; ++ranks) {
      const auto divided = divide_cores(plain_cores(count), ranks);
      ASSERT_EQ(divided.size(), static_cast<std::size_t>(ranks));
      std::set<int> seen;
      std::size_t total = 0;
      std::size_t least = divided[0].size();
      std::size_t most = 0;
      for (const auto& part : divided) {
        seen.insert(part.begin(), part.end());
        total += part.size();
        least = std::min(least, part.size());
        most = std::max(most, part.size());
      }
      EXPECT_EQ(total, static_cast<std::size_t>(count));
      EXPECT_EQ(seen.size(), total);
      EXPECT_GE(least, 1U);
      EXPECT_LE(most - least, 1U);
    }
  }
}

TEST(Cores, FewerThanRanksAreNotDivided) {
  EXPECT_THAT(divide_cores(plain_cores(3), 4), IsEmpty());
}

TEST(Cores, ThreadsOfOnePhysicalCoreStayTogether) {
  // Numbered like Linux: first one thread of each core, then the siblings.
  const std::vector<CpuCore> cores = {
      {0, 0, 0}, {1, 0, 1}, {2, 0, 0}, {3, 0, 1}};
  EXPECT_THAT(
      divide_cores(cores, 2),
      ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(Cores, RanksStayOnOneChip) {
  const std::vector<CpuCore> cores = {
      {0, 0, 0}, {1, 1, 0}, {2, 0, 1}, {3, 1, 1}};
  EXPECT_THAT(
      divide_cores(cores, 2),
      ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(Cores, ThisMachineHasSome) {
  const std::vector<CpuCore> cores = usable_cores();
  ASSERT_FALSE(cores.empty());
  std::set<int> numbers;
  for (const CpuCore& core : cores) {
    numbers.insert(core.number);
  }
  EXPECT_EQ(numbers.size(), cores.size());
}

}  // namespace
}  // namespace sherd::launch
