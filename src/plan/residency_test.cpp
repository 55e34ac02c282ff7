// SPDX-License-Identifier: Apache-2.0
#include "plan/residency.h"

#include <algorithm>
#include <list>
#include <numeric>
#include <set>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "plan/random_testing.h"

namespace sherd::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Units = std::vector<UnitId>;
using Bytes = std::vector<std::int64_t>;

Budget fixed(std::int64_t bytes) { return {.bytes = bytes}; }

Residency::Decision visit(Residency& residency, const Units& units) {
  return residency.visit(units).value();
}

std::int64_t fetched_bytes(
    Residency& residency, const Bytes& bytes, const Units& units) {
  std::int64_t fetched = 0;
  for (const UnitId unit : visit(residency, units).fetch) {
    fetched += bytes[static_cast<std::size_t>(unit)];
  }
  return fetched;
}

TEST(Residency, FetchesWhatIsMissingAndKeepsTheRest) {
  Residency residency({10, 20, 30}, fixed(60));
  EXPECT_THAT(visit(residency, {2, 0, 2}).fetch, ElementsAre(2, 0));
  const Residency::Decision again = visit(residency, {0, 1});
  EXPECT_THAT(again.fetch, ElementsAre(1));
  EXPECT_THAT(again.evict, IsEmpty());
  EXPECT_EQ(residency.resident_bytes(), 60);
  EXPECT_EQ(visit(residency, {0, 1, 2}).reason, "whole already");
}

TEST(Residency, EvictsTheLeastRecentlyUsedFirst) {
  Residency residency({10, 10, 10, 20}, fixed(30));
  visit(residency, {0});
  visit(residency, {1});
  visit(residency, {2});
  visit(residency, {0});
  const Residency::Decision decision = visit(residency, {3});
  EXPECT_THAT(decision.evict, ElementsAre(1, 2));
  EXPECT_TRUE(residency.resident(0));
  EXPECT_THAT(
      decision.reason,
      HasSubstr("fetches 1 units, evicts the 2 least recently used; 30 bytes "
                "are whole, budget 30"));
}

// After visits that other ranks have not made, or have made in another order.
TEST(Residency, OrderedByUnitTheLastUnitMakesRoomFirst) {
  for (const bool visits : {false, true}) {
    Residency residency({10, 10, 10, 10}, {.bytes = 30});
    for (const UnitId unit : {0, 1, 2}) {
      (void)residency.visit(std::vector<UnitId>{unit});
    }
    if (visits) {
      (void)residency.visit(std::vector<UnitId>{2});
      (void)residency.visit(std::vector<UnitId>{0});
    }
    residency.order_by_unit();
    const auto decision = residency.visit(std::vector<UnitId>{3});
    EXPECT_EQ(decision.value().evict, std::vector<UnitId>{2});
  }
}

TEST(Residency, NeverEvictsAPinnedUnitOrOneOfTheSet) {
  Residency residency({10, 10, 10, 10}, fixed(30));
  visit(residency, {0});
  visit(residency, {1});
  visit(residency, {2});
  residency.pin(0);
  EXPECT_THAT(visit(residency, {1, 3}).evict, ElementsAre(2));
}

TEST(Residency, PinsCount) {
  Residency residency({10, 10}, fixed(10));
  visit(residency, {0});
  residency.pin(0);
  residency.pin(0);
  residency.unpin(0);
  EXPECT_TRUE(residency.pinned(0));
  EXPECT_FALSE(residency.visit(Units{1}).ok());
  residency.unpin(0);
  EXPECT_THAT(visit(residency, {1}).evict, ElementsAre(0));
}

TEST(Residency, AVisitAboveAFixedBudgetNamesTheFloorAndChangesNothing) {
  Residency residency({10, 20, 30}, fixed(50));
  visit(residency, {0});
  visit(residency, {1});
  residency.pin(1);

  const Result<Residency::Decision> refused = residency.visit(Units{2, 0});

  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(
      refused.status().message(),
      AllOf(
          HasSubstr("60 bytes must be whole at once, units 0 (10 bytes), "
                    "1 (20 bytes, in use), 2 (30 bytes)"),
          HasSubstr("the budget is 50 bytes; raise it to at least 60")));
  EXPECT_EQ(residency.resident_bytes(), 30);
  EXPECT_FALSE(residency.resident(2));
  // The order of use is unchanged, too: 0 is still the oldest.
  residency.unpin(1);
  EXPECT_THAT(visit(residency, {2}).evict, ElementsAre(0));
}

TEST(Residency, ALargerVisitThanAssumedGrowsAPreset) {
  // Without a root: one unit of 10 bytes is assumed, so the budget is 20.
  const Bytes units{10, 10, 10, 10};
  Residency residency(units, full_shard_budget({.bytes = units}));
  EXPECT_FALSE(visit(residency, {0}).grown_budget_bytes.has_value());

  const Residency::Decision larger = visit(residency, {1, 2});

  EXPECT_EQ(larger.grown_budget_bytes, 30);
  EXPECT_EQ(residency.budget_bytes(), 30);
  EXPECT_THAT(
      larger.reason, HasSubstr("grown because a visit of 20 bytes is larger"));
  EXPECT_FALSE(visit(residency, {0, 3}).grown_budget_bytes.has_value());
  // Never more than all units.
  EXPECT_EQ(visit(residency, {0, 1, 2, 3}).grown_budget_bytes, 40);
}

TEST(Residency, NestedVisitsGrowAPresetAsOne) {
  const Bytes units{10, 10, 10, 10};
  Residency residency(units, full_shard_budget({.bytes = units}));
  visit(residency, {0});
  residency.pin(0);
  visit(residency, {1});
  residency.pin(1);
  EXPECT_EQ(residency.budget_bytes(), 30);
}

TEST(Residency, WithoutABudgetNothingIsEvicted) {
  Residency residency({10, 20, 30}, Budget{});
  for (const UnitId unit : {0, 1, 2, 0, 2, 1}) {
    EXPECT_THAT(visit(residency, {unit}).evict, IsEmpty());
  }
  EXPECT_EQ(residency.resident_bytes(), 60);
}

TEST(Residency, DropsOnRequestAndFetchesAgain) {
  Residency residency({10, 20, 30}, fixed(60));
  visit(residency, {1});
  visit(residency, {0, 2});
  EXPECT_TRUE(residency.drop(0));
  EXPECT_FALSE(residency.drop(0));
  EXPECT_THAT(visit(residency, {0}).fetch, ElementsAre(0));
  EXPECT_EQ(residency.resident_bytes(), 60);
}

TEST(Residency, ANewBudgetHoldsForLaterVisits) {
  Residency residency({10, 10, 10}, fixed(20));
  visit(residency, {0, 1});
  residency.set_budget_bytes(30);
  EXPECT_THAT(visit(residency, {2}).evict, IsEmpty());
  residency.drop(0);
  residency.set_budget_bytes(20);
  EXPECT_THAT(visit(residency, {0}).evict, ElementsAre(1));
}

TEST(Residency, ANewBudgetHoldsTheVisitThatAPresetAssumed) {
  Residency residency({10, 10}, {.bytes = 15, .assumed_visit_bytes = 10});
  visit(residency, {0, 1});
  residency.drop(0);
  residency.drop(1);
  residency.set_budget_bytes(12);
  EXPECT_EQ(residency.budget_bytes(), 20);
}

TEST(Residency, RefusesUnknownUnitsAndNonsense) {
  Residency residency({10}, fixed(10));
  EXPECT_THROW((void)residency.visit(Units{0, 1}), Error);
  EXPECT_FALSE(residency.resident(0));
  EXPECT_THROW((void)residency.resident(-1), Error);
  EXPECT_THROW(Residency({-1}, fixed(10)), Error);
  EXPECT_THROW(Residency({1}, fixed(-1)), Error);
  EXPECT_THROW(Residency({1}, {.bytes = 1, .assumed_visit_bytes = 2}), Error);
}

TEST(ResidencyDeathTest, WrongPinsAreBrokenInvariants) {
  Residency residency({10}, fixed(10));
  EXPECT_DEATH(residency.pin(0), "pinned but not whole");
  visit(residency, {0});
  EXPECT_DEATH(residency.unpin(0), "unpinned too often");
  residency.pin(0);
  EXPECT_DEATH((void)residency.drop(0), "dropped while pinned");
}

// A list in order of use, searched from its oldest end.
class ReferenceLru {
 public:
  ReferenceLru(Bytes bytes, std::int64_t budget)
      : bytes_(std::move(bytes)), budget_(budget) {}

  bool holds(UnitId unit) const {
    return std::find(order_.begin(), order_.end(), unit) != order_.end();
  }

  std::int64_t sum(const std::list<UnitId>& units) const {
    return std::accumulate(
        units.begin(), units.end(), std::int64_t{0},
        [&](std::int64_t sum, UnitId unit) { return sum + size(unit); });
  }

  // Returns false if it cannot fit.
  bool visit(const Units& units, Units& evicted, Units& fetched) {
    std::set<UnitId> keep(units.begin(), units.end());
    keep.insert(pins.begin(), pins.end());
    if (sum({keep.begin(), keep.end()}) > budget_) {
      return false;
    }
    for (const UnitId unit : units) {
      if (!holds(unit)) {
        fetched.push_back(unit);
        order_.push_back(unit);
      }
    }
    for (auto it = order_.begin(); sum(order_) > budget_;) {
      if (keep.count(*it) == 0) {
        evicted.push_back(*it);
        it = order_.erase(it);
      } else {
        ++it;
      }
    }
    for (const UnitId unit : units) {
      order_.remove(unit);
      order_.push_back(unit);
    }
    return true;
  }

  void drop(UnitId unit) { order_.remove(unit); }
  const std::list<UnitId>& order() const { return order_; }

  std::multiset<UnitId> pins;

 private:
  std::int64_t size(UnitId unit) const {
    return bytes_[static_cast<std::size_t>(unit)];
  }

  Bytes bytes_;
  std::int64_t budget_;
  std::list<UnitId> order_;  // Least recently used first.
};

void visit_both(Residency& residency, ReferenceLru& lru, TestRandom& random) {
  Units units;
  for (std::int64_t i = random.in(1, 3); i > 0; --i) {
    units.push_back(static_cast<UnitId>(random.in(0, residency.units() - 1)));
  }
  Units evicted;
  Units fetched;
  const bool fits = lru.visit(units, evicted, fetched);
  const Result<Residency::Decision> decision = residency.visit(units);
  ASSERT_EQ(decision.ok(), fits);
  if (fits) {
    ASSERT_EQ(decision.value().evict, evicted);
    ASSERT_EQ(decision.value().fetch, fetched);
  }
}

void pin_or_drop_both(
    Residency& residency, ReferenceLru& lru, TestRandom& random) {
  const auto unit = static_cast<UnitId>(random.in(0, residency.units() - 1));
  if (lru.pins.count(unit) > 0) {
    residency.unpin(unit);
    lru.pins.erase(lru.pins.find(unit));
  } else if (!lru.holds(unit)) {
    ASSERT_FALSE(residency.drop(unit));
  } else if (random.in(0, 1) == 0) {
    residency.pin(unit);
    lru.pins.insert(unit);
  } else {
    ASSERT_TRUE(residency.drop(unit));
    lru.drop(unit);
  }
}

TEST(Residency, AnyTraceMatchesTheReferenceAndStaysInTheBudget) {
  for_seeds(300, [](TestRandom& random) {
    Bytes bytes(static_cast<std::size_t>(random.in(1, 9)));
    for (std::int64_t& size : bytes) {
      size = random.in(0, 20);
    }
    const std::int64_t budget = random.in(10, 100);
    Residency residency(bytes, fixed(budget));
    ReferenceLru lru(bytes, budget);
    for (int step = 0; step < 100; ++step) {
      if (random.in(0, 3) > 0) {
        visit_both(residency, lru, random);
      } else {
        pin_or_drop_both(residency, lru, random);
      }
      ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "step " << step;
      ASSERT_LE(residency.resident_bytes(), budget);
      ASSERT_EQ(residency.resident_bytes(), lru.sum(lru.order()));
    }
  });
}

// docs: traffic = (2G - (2G - 1) b) M on a chain of equal units.
TEST(Residency, TrafficOnAChainOfEqualUnitsFollowsTheClosedForm) {
  constexpr std::int64_t kUnitBytes = 100;
  for (const int n : {1, 2, 3, 4, 7, 12}) {
    for (int kept = 1; kept <= n; ++kept) {
      for (const int micro_batches : {1, 2, 4}) {
        const Bytes bytes(static_cast<std::size_t>(n), kUnitBytes);
        Residency residency(bytes, fixed(kept * kUnitBytes));
        std::int64_t traffic = 0;
        for (int g = 0; g < micro_batches; ++g) {
          for (int unit = 0; unit < n; ++unit) {
            traffic += fetched_bytes(residency, bytes, {unit});
          }
          for (int unit = n - 1; unit >= 0; --unit) {
            traffic += fetched_bytes(residency, bytes, {unit});
          }
        }
        // M = n units, b M = kept units.
        const int passes = 2 * micro_batches;
        EXPECT_EQ(traffic, (passes * n - (passes - 1) * kept) * kUnitBytes)
            << n << " units, " << kept << " kept, G = " << micro_batches;
      }
    }
  }
}

TEST(Residency, ShardGradOpGathersEachUnitOncePerStep) {
  const Bytes units{5, 10, 10, 10};
  Residency residency(units, shard_grad_op_budget({.bytes = units, .root = 0}));
  std::int64_t traffic = 0;
  for (const UnitId unit : {0, 1, 2, 3, 0, 3, 2, 1, 0}) {
    traffic += fetched_bytes(residency, units, {unit});
  }
  EXPECT_EQ(traffic, 35);
}

}  // namespace
}  // namespace sherd::plan
