// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/samples_of_rank.h"

#include <gmock/gmock.h>
#include "support/error_of.h"

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
