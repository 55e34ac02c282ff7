// SPDX-License-Identifier: Apache-2.0
#include "exchange/gradient_chunks.h"

#include <algorithm>
#include <gtest/gtest.h>
#include "base/check.h"

namespace sherd::exchange {
namespace {

UnitSpec unit_of(const std::vector<std::int64_t>& numels) {
  std::vector<plan::FlatParameter> parameters;
  for (const auto numel : numels) {
    parameters.push_back({str("p", parameters.size()), numel});
  }
  FlatSpec flat;
  flat.layout = plan::plan_flat_layout(parameters, {.ranks = 3});
  return {.name = "unit", .flats = {flat}};
}

constexpr std::int64_t kLarge = 100'001;  // Odd: padding follows.

TEST(Segments, CoverTheFlatAndKeepLargeParametersApart) {
  for (const auto& numels : std::vector<std::vector<std::int64_t>>{
           {},
           {5},
           {kLarge},
           {kLarge, kLarge},
           {3, kLarge, 7, 9, kLarge, 0},
           {0, 0, kLarge, 0, 11}}) {
    const auto unit = unit_of(numels);
    const auto& layout = unit.flats[0].layout;
    std::int64_t end = 0;
    std::size_t alone = 0;
    const auto chunks = chunks_of(unit);
    for (const auto& chunk : chunks.at(0)) {
      EXPECT_EQ(chunk.range.begin, end);
      EXPECT_FALSE(chunk.range.empty());
      end = chunk.range.end;
      if (chunk.parameter >= 0) {
        const auto p = static_cast<std::size_t>(chunk.parameter);
        EXPECT_EQ(chunk.range.begin, layout.offsets[p]);
        EXPECT_EQ(chunk.range.numel(), layout.numels[p]);
        ++alone;
      }
    }
    EXPECT_EQ(end, layout.numel);
    EXPECT_EQ(
        alone,
        static_cast<std::size_t>(
            std::count(numels.begin(), numels.end(), kLarge)));
  }
}

TEST(Segments, IntersectionsAreEmptyWhereRangesDoNotMeet) {
  EXPECT_EQ(intersection({2, 7}, {5, 9}), (plan::ElementRange{5, 7}));
  EXPECT_EQ(intersection({2, 7}, {3, 4}), (plan::ElementRange{3, 4}));
  EXPECT_EQ(intersection({2, 7}, {7, 9}), (plan::ElementRange{7, 7}));
  EXPECT_EQ(intersection({2, 7}, {8, 9}), (plan::ElementRange{7, 7}));
  EXPECT_EQ(intersection({8, 9}, {1, 3}), (plan::ElementRange{8, 8}));
}

}  // namespace
}  // namespace sherd::exchange
