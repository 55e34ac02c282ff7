// SPDX-License-Identifier: Apache-2.0
#include "plan/recorded_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::plan {
namespace {

using ::testing::ElementsAre;

// Writes the events of a step; each event takes 10 ns and the given bytes.
struct Story {
  std::vector<MemoryEvent> events;
  std::int64_t bytes = 0;

  Story& then(MemoryMoment moment, int region, std::int64_t more) {
    const auto before = bytes;
    bytes += more;
    events.push_back(
        {.moment = moment,
         .region = region,
         .ns = 10 * static_cast<std::int64_t>(events.size() + 1),
         .bytes = bytes,
         .peak_bytes = std::max(before, bytes) + 1});
    return *this;
  }
  Story& forward(int region, std::int64_t kept) {
    return then(MemoryMoment::kForwardBegins, region, 0)
        .then(MemoryMoment::kForwardEnds, region, kept);
  }
  Story& backward(int region, std::int64_t activations, std::int64_t kept) {
    then(MemoryMoment::kAgainBegins, region, 0)
        .then(MemoryMoment::kAgainEnds, region, activations);
    bytes -= activations + kept;
    return *this;
  }
  RecordedMemory end() {
    then(MemoryMoment::kStepEnds, -1, 0);
    return recorded_memory(events, /*always_bytes=*/1000);
  }
};

TEST(RecordedMemory, OfAChain) {
  const auto found = Story()
                         .forward(7, 2)
                         .forward(3, 3)
                         .backward(3, 50, 3)
                         .backward(7, 40, 2)
                         .end();
  EXPECT_THAT(found.regions, ElementsAre(7, 3));
  ASSERT_EQ(found.step.units.size(), 2U);
  EXPECT_EQ(found.step.units[0].activation_bytes, 40);
  EXPECT_EQ(found.step.units[1].activation_bytes, 50);
  EXPECT_EQ(found.step.units[0].recompute_ns, 10);
  EXPECT_EQ(found.step.base_ns, 90 - 20);
  // While no region waits, region 7 is recomputed; while one waits, region 3.
  EXPECT_THAT(found.step.base_bytes, ElementsAre(1043, 1056, 1006));
}

TEST(RecordedMemory, OfMicroBatchesAddsTimesAndTakesTheMostBytes) {
  const auto found = Story()
                         .forward(0, 2)
                         .backward(0, 40, 2)
                         .forward(0, 2)
                         .backward(0, 60, 2)
                         .end();
  ASSERT_EQ(found.step.units.size(), 1U);
  EXPECT_EQ(found.step.units[0].activation_bytes, 60);
  EXPECT_EQ(found.step.units[0].recompute_ns, 20);
}

TEST(RecordedMemory, ARegionThatWaitsTwiceCountsTwice) {
  const auto found = Story()
                         .forward(0, 2)
                         .forward(0, 2)
                         .backward(0, 40, 2)
                         .backward(0, 40, 2)
                         .end();
  ASSERT_EQ(found.step.units.size(), 1U);
  EXPECT_EQ(found.step.units[0].activation_bytes, 80);
}

TEST(RecordedMemory, WaitingForUnitsIsNoComputing) {
  std::vector<MemoryEvent> events = {
      {.moment = MemoryMoment::kForwardBegins, .region = 0},
      {.moment = MemoryMoment::kForwardEnds, .region = 0},
      {.moment = MemoryMoment::kAgainBegins,
       .region = 0,
       .ns = 100,
       .gather_ns = 20},
      {.moment = MemoryMoment::kAgainEnds,
       .region = 0,
       .ns = 150,
       .gather_ns = 50},
      {.moment = MemoryMoment::kStepEnds, .ns = 200, .gather_ns = 60}};
  const auto found = recorded_memory(events, 0);
  EXPECT_EQ(found.step.units[0].recompute_ns, 20);
  EXPECT_EQ(found.step.base_ns, 200 - 20);
}

TEST(RecordedMemory, WithoutRegionsHasOnePeak) {
  const auto found = Story().end();
  EXPECT_THAT(found.step.base_bytes, ElementsAre(1001));
  EXPECT_TRUE(found.step.units.empty());
}

TEST(RecordedMemory, GatheredUnitsCountAtEachMoment) {
  auto found = Story().forward(0, 2).forward(1, 2).backward(1, 9, 2).end().step;
  const auto before = found.base_bytes;
  const auto base_ns = found.base_ns;
  const std::vector<UnitMemory> units = {{.whole_bytes = 5, .gather_ns = 8}};
  add_gathered_units(units, found);
  ASSERT_EQ(found.units.size(), 3U);
  EXPECT_EQ(found.units[0].whole_bytes, 5);
  EXPECT_EQ(found.units[0].gather_ns, 8);
  EXPECT_EQ(found.base_ns, base_ns - 8);
  EXPECT_THAT(
      found.base_bytes, ElementsAre(0, before[0], before[1], before[2]));
  const std::vector<UnitChoice> whole = {{.keep_whole = true}, {}, {}};
  EXPECT_EQ(cost_of(found, whole).peak_bytes, memory_floor(found) + 5);
}

TEST(RecordedMemory, MayHaveTheTimesOfAnotherStep) {
  const auto memory = Story().forward(0, 2).backward(0, 9, 2).end();
  auto slower = Story().forward(0, 3).backward(0, 7, 3);
  for (auto& event : slower.events) {
    event.ns *= 3;
  }
  const auto both = with_times(memory, slower.end());
  ASSERT_TRUE(both.has_value());
  EXPECT_EQ(both->step.units[0].activation_bytes, 9);
  EXPECT_EQ(both->step.units[0].recompute_ns, 30);
  EXPECT_EQ(both->step.base_ns, 50 - 30);
  EXPECT_EQ(both->step.base_bytes, memory.step.base_bytes);
  EXPECT_FALSE(with_times(memory, Story().forward(1, 2).end()).has_value());
}

TEST(RecordedMemory, LeavesOutABackwardWhoseForwardCameBefore) {
  const auto found = Story().backward(4, 10, 0).forward(5, 2).end();
  EXPECT_THAT(found.regions, ElementsAre(5));
}

}  // namespace
}  // namespace sherd::plan
