// SPDX-License-Identifier: Apache-2.0
//
// The rules hold in thousands of simulated worlds with random faults. A seed that fails is printed
// with everything it drew; --gtest_random_seed=N makes it the first one.
#include "sim/swarm_testing.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <gmock/gmock.h>

namespace sherd::sim {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::IsEmpty;

std::uint64_t seed_base() {
  return static_cast<std::uint64_t>(std::max(GTEST_FLAG_GET(random_seed), 1));
}

// The trace of a seed, from a second run.
std::string story_of(std::uint64_t seed, std::int64_t steps) {
  const auto again = run_swarm(seed, steps, /*traced=*/true);
  std::string story = "seed " + std::to_string(seed) + ": " +
      text_of(draw_swarm_options(seed)) + "\n";
  for (const auto& line : again.last) {
    story += line + "\n";
  }
  return story + again.violation;
}

void expect_holds(std::uint64_t seeds, std::int64_t steps) {
  const auto base = seed_base();
  std::printf("seeds from %llu on\n", static_cast<unsigned long long>(base));
  SwarmResult all;
  all.faults.resize(kSwarmFaults);
  for (auto seed = base; seed < base + seeds; ++seed) {
    const auto one = run_swarm(seed, steps);
    ASSERT_THAT(one.violation, IsEmpty())
        << "after " << seed - base + 1 << " seeds\n"
        << story_of(seed, steps);
    all.commits += one.commits;
    all.rollbacks += one.rollbacks;
    all.recoveries += one.recoveries;
    all.events += one.events;
    for (std::size_t i = 0; i < all.faults.size(); ++i) {
      all.faults[i] += one.faults[i];
    }
  }
  std::printf(
      "%lld steps, %lld rollbacks, %lld recoveries of a log, %lld events\n",
      static_cast<long long>(all.commits),
      static_cast<long long>(all.rollbacks),
      static_cast<long long>(all.recoveries),
      static_cast<long long>(all.events));
  EXPECT_GT(all.commits, 0);
  EXPECT_GT(all.rollbacks, 0);
  EXPECT_GT(all.recoveries, 0);
  EXPECT_THAT(all.faults, Each(Gt(0)));
}

TEST(Swarm, TwoHundredWorldsHold) { expect_holds(200, 500); }

// Run by `make soak`.
TEST(Swarm, DISABLED_TenThousandWorldsHold) { expect_holds(10'000, 500); }

TEST(Swarm, ASeedMakesTheSameRun) {
  for (auto seed = seed_base(); seed < seed_base() + 5; ++seed) {
    const auto one = run_swarm(seed, 200);
    const auto again = run_swarm(seed, 200, /*traced=*/true);
    EXPECT_EQ(one.digest, again.digest) << "seed " << seed;
    EXPECT_EQ(one.events, again.events) << "seed " << seed;
    EXPECT_NE(one.digest, run_swarm(seed + 1, 200).digest) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sherd::sim
