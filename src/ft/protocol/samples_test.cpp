// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/samples.h"

#include <random>
#include <set>
#include <gmock/gmock.h>
#include "support/error_of.h"

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SampleSet, GivesTheLowestThatAreFree) {
  SampleSet taken;
  EXPECT_THAT(taken.lowest_free(3), ElementsAre(SampleRange{0, 3}));
  EXPECT_THAT(taken.lowest_free(0), IsEmpty());
  taken.add({2, 4});
  taken.add({7, 9});
  EXPECT_THAT(
      taken.lowest_free(6),
      ElementsAre(SampleRange{0, 2}, SampleRange{4, 7}, SampleRange{9, 10}));
  taken.add({4, 7});
  EXPECT_THAT(taken.ranges(), ElementsAre(SampleRange{2, 9}));
  EXPECT_EQ(taken.size(), 7);
}

TEST(SampleSet, RefusesWhatIsTaken) {
  SampleSet taken;
  taken.add({2, 4});
  for (const SampleRange range : {SampleRange{3, 5}, {0, 3}, {2, 4}, {0, 9}}) {
    EXPECT_THAT(
        test::error_of([&] { taken.add(range); }),
        HasSubstr("found some of them taken"));
  }
  EXPECT_THAT(
      test::error_of([&] { taken.add({5, 4}); }),
      HasSubstr("expected samples"));
  EXPECT_EQ(taken.size(), 2);
}

// Compares with a set of numbers.
TEST(SampleSet, IsTheSetOfItsSamples) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    SampleSet taken;
    std::set<std::int64_t> expected;
    for (int i = 0; i < 20; ++i) {
      const auto begin = static_cast<std::int64_t>(random() % 60);
      const auto end = begin + static_cast<std::int64_t>(random() % 5);
      bool free = true;
      for (auto at = begin; at < end; ++at) {
        free = free && !expected.contains(at);
      }
      if (free) {
        taken.add({begin, end});
        for (auto at = begin; at < end; ++at) {
          expected.insert(at);
        }
      }
    }
    EXPECT_EQ(taken.size(), static_cast<std::int64_t>(expected.size()));
    std::int64_t given = 0;
    for (const auto& range : taken.lowest_free(17)) {
      for (auto at = range.begin; at < range.end; ++at, ++given) {
        EXPECT_FALSE(expected.contains(at)) << at;
        // No lower sample is left out.
        EXPECT_EQ(
            given + std::distance(expected.begin(), expected.lower_bound(at)),
            at);
      }
    }
    EXPECT_EQ(given, 17);
  }
}

TEST(SamplesOfRank, AreCutAcrossRanges) {
  const std::vector<SampleRange> samples = {{4, 7}, {20, 25}};
  EXPECT_THAT(
      samples_of_rank(samples, 0, 2),
      ElementsAre(SampleRange{4, 7}, SampleRange{20, 21}));
  EXPECT_THAT(samples_of_rank(samples, 1, 2), ElementsAre(SampleRange{21, 25}));
  EXPECT_THAT(samples_of_rank(samples, 0, 1), samples);
  EXPECT_THAT(samples_of_rank({}, 1, 2), IsEmpty());
}

TEST(SamplesOfRank, MustBeDivisible) {
  EXPECT_THAT(
      test::error_of([] { samples_of_rank({{0, 3}}, 0, 2); }),
      HasSubstr(
          "expected samples of a replica that its 2 ranks divide, found 3"));
}

}  // namespace
}  // namespace sherd::ft
