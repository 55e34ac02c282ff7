// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/sum_store.h"

#include <vector>
#include <gtest/gtest.h>
#include "ft/transfer/transfer_testing.h"

namespace sherd::ft::transfer {
namespace {

using namespace std::chrono_literals;
using testing::commit_of;
using testing::random_bytes;
using testing::state_of;

constexpr std::optional<std::int64_t> kNobody;

// The steps between 1 and 100 whose sums are stored.
std::vector<std::int64_t> steps(const SumStore& store) {
  std::vector<std::int64_t> found;
  for (std::int64_t step = 1; step <= 100; ++step) {
    if (const CommittedSum* sum = store.find(state_of(step - 1))) {
      EXPECT_EQ(sum->commit, commit_of(step));
      found.push_back(step);
    }
  }
  return found;
}

void keep(SumStore& store, std::int64_t first, std::int64_t last) {
  for (auto step = first; step <= last; ++step) {
    store.keep(commit_of(step), random_bytes(8, 1));
  }
}

using Steps = std::vector<std::int64_t>;

TEST(SumStore, KeepsTheLastFewWhenNobodyNeedsMore) {
  SumStore store({.kept = 2, .bytes_max = 40});
  EXPECT_EQ(store.text(), "no sums");
  keep(store, 1, 4);
  store.trim(Instant(1s), kNobody);
  EXPECT_EQ(steps(store), (Steps{3, 4}));
  EXPECT_EQ(store.text(), "the sums that made steps 3 to 4");
}

TEST(SumStore, MayKeepNone) {
  SumStore store({.kept = 0, .bytes_max = 40});
  keep(store, 1, 2);
  store.trim(Instant(1s), kNobody);
  EXPECT_EQ(store.size(), 0U);
}

TEST(SumStore, KeepsWhatFollowsAStateInUse) {
  SumStore store({.kept = 1, .bytes_max = 40});
  store.hold(3, Instant(5s));  // A requester at step 3 needs fewer sums.
  keep(store, 1, 4);
  store.trim(Instant(1s), 2);
  EXPECT_EQ(steps(store), (Steps{3, 4}));
  store.trim(Instant(1s), kNobody);
  EXPECT_EQ(steps(store), (Steps{4}));
}

TEST(SumStore, KeepsNoMoreBytesThanItsMaximumWhoeverNeedsThem) {
  SumStore store({.kept = 1, .bytes_max = 24});
  keep(store, 1, 6);
  store.trim(Instant(1s), 0);
  EXPECT_EQ(steps(store), (Steps{4, 5, 6}));
}

TEST(SumStore, HoldsUntilTheTimeGiven) {
  SumStore store({.kept = 1, .bytes_max = 72});
  store.hold(3, Instant(5s));
  store.hold(2, Instant(4s));
  store.hold(3, Instant(1s));  // An earlier time does not shorten the hold.
  keep(store, 1, 6);
  store.trim(Instant(3s), 4);
  EXPECT_EQ(steps(store), (Steps{3, 4, 5, 6}));
  store.trim(Instant(4s), 4);
  EXPECT_EQ(steps(store), (Steps{4, 5, 6}));
  store.trim(Instant(5s), kNobody);
  EXPECT_EQ(steps(store), (Steps{6}));
}

TEST(SumStore, DropsWhatWasRolledBack) {
  SumStore store({.kept = 9, .bytes_max = 72});
  keep(store, 1, 5);
  Commit other = commit_of(4);
  other.result = state_of(4, 2);
  store.keep(other, random_bytes(8, 2));
  EXPECT_EQ(store.size(), 4U);
  ASSERT_NE(store.find(state_of(3)), nullptr);
  EXPECT_EQ(store.find(state_of(3))->commit, other);
  EXPECT_EQ(store.find(state_of(4)), nullptr);
}

TEST(SumStore, FindsByTheWholeState) {
  SumStore store({.kept = 9, .bytes_max = 72});
  keep(store, 1, 5);
  EXPECT_NE(store.find(state_of(2)), nullptr);
  EXPECT_EQ(store.find(state_of(2, 8)), nullptr);
  EXPECT_EQ(store.find(state_of(5)), nullptr);
}

}  // namespace
}  // namespace sherd::ft::transfer
