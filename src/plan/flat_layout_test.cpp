// SPDX-License-Identifier: Apache-2.0
#include "plan/flat_layout.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "plan/random_testing.h"

namespace sherd::plan {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Parameters = std::vector<FlatParameter>;

FlatLayoutOptions random_options(TestRandom& random) {
  constexpr int kWorlds[] = {1, 2, 3, 4, 7, 40};
  constexpr std::int64_t kBytes[] = {1, 2, 4, 8, 3};
  FlatLayoutOptions options;
  options.ranks = kWorlds[random.in(0, 5)];
  options.element_bytes = kBytes[random.in(0, 4)];
  if (random.in(0, 1) == 0) {
    options.parameter_alignment_bytes = random.in(1, 64);
    options.slice_alignment_bytes = random.in(1, 64);
  }
  return options;
}

Parameters random_parameters(TestRandom& random) {
  Parameters parameters(static_cast<std::size_t>(random.in(0, 6)));
  for (FlatParameter& parameter : parameters) {
    parameter.name = "p" + std::to_string(&parameter - parameters.data());
    parameter.numel = random.in(0, 3) == 0 ? random.in(0, 2) : random.in(0, 90);
    parameter.granularity = random.in(0, 1) == 0 ? 1 : random.in(1, 100);
  }
  return parameters;
}

void expect_cuts_are_legal(const FlatLayout& layout, const Parameters& all) {
  for (const std::int64_t cut : layout.cuts) {
    for (std::size_t p = 0; p < all.size(); ++p) {
      const std::int64_t inside = cut - layout.offsets[p];
      if (inside > 0 && inside < all[p].numel) {
        EXPECT_EQ(inside % all[p].granularity, 0) << "cut " << cut;
      }
    }
  }
}

// The elements of the flat that no parameter uses.
std::int64_t padding(const FlatLayout& layout) {
  return std::accumulate(
      layout.numels.begin(), layout.numels.end(), layout.numel, std::minus<>());
}

// Every element of every parameter lies in exactly one slice, at the place given by offsets and
// cuts.
void expect_slices_cover(const FlatLayout& layout) {
  std::vector<int> owners(static_cast<std::size_t>(layout.numel));
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const ElementRange shard = layout.shard(rank);
    for (int p = 0; p < layout.parameters(); ++p) {
      const ParameterSlice slice = parameter_slice(layout, p, rank);
      ASSERT_EQ(slice.parameter, p);
      ASSERT_EQ(slice.in_shard.numel(), slice.in_parameter.numel());
      ASSERT_LE(slice.in_shard.end, shard.numel());
      for (std::int64_t i = 0; i < slice.in_shard.numel(); ++i) {
        const std::int64_t element = shard.begin + slice.in_shard.begin + i;
        ASSERT_EQ(
            element,
            layout.offsets[static_cast<std::size_t>(p)] +
                slice.in_parameter.begin + i);
        ++owners[static_cast<std::size_t>(element)];
      }
    }
  }
  EXPECT_THAT(owners, Each(::testing::Le(1)));
  EXPECT_EQ(std::count(owners.begin(), owners.end(), 0), padding(layout));
}

TEST(FlatLayout, AnyFlatIsCoveredOnceAndCutOnlyBetweenBlocks) {
  for_seeds(2000, [](TestRandom& random) {
    const FlatLayoutOptions options = random_options(random);
    const Parameters parameters = random_parameters(random);
    const FlatLayout layout = plan_flat_layout(parameters, options);

    ASSERT_EQ(layout.ranks(), options.ranks);
    ASSERT_EQ(layout.cuts.front(), 0);
    ASSERT_EQ(layout.cuts.back(), layout.numel);
    ASSERT_TRUE(std::is_sorted(layout.cuts.begin(), layout.cuts.end()));
    ASSERT_TRUE(std::is_sorted(layout.offsets.begin(), layout.offsets.end()));
    for (const std::int64_t offset : layout.offsets) {
      ASSERT_EQ(
          offset * options.element_bytes % options.parameter_alignment_bytes,
          0);
    }
    expect_cuts_are_legal(layout, parameters);
    expect_slices_cover(layout);
  });
}

TEST(FlatLayout, UnequalCountsPadOnlyBetweenParameters) {
  for_seeds(500, [](TestRandom& random) {
    const FlatLayoutOptions options = random_options(random);
    const FlatLayout layout =
        plan_flat_layout(random_parameters(random), options);
    for (std::size_t p = 1; p < layout.offsets.size(); ++p) {
      const std::int64_t gap =
          layout.offsets[p] - layout.offsets[p - 1] - layout.numels[p - 1];
      ASSERT_GE(gap, 0);
      ASSERT_LT(gap, options.parameter_alignment_bytes);
    }
    const bool empty = layout.offsets.empty();
    ASSERT_EQ(
        layout.numel, empty ? 0 : layout.offsets.back() + layout.numels.back());
  });
}

TEST(FlatLayout, AnEmptyFlatHasEmptyShards) {
  for (const Parameters& parameters :
       {Parameters{}, Parameters{{"a", 0}, {"b", 0, 7}}}) {
    const FlatLayout layout = plan_flat_layout(parameters, {.ranks = 3});
    EXPECT_THAT(layout.cuts, ElementsAre(0, 0, 0, 0));
    EXPECT_EQ(layout.numel, 0);
  }
}

TEST(FlatLayout, MoreRanksThanElementsLeaveEmptyShards) {
  const Parameters parameters{{"scalar", 1}, {"pair", 2}};
  const FlatLayout layout = plan_flat_layout(
      parameters, {.ranks = 7, .parameter_alignment_bytes = 4});
  int owners = 0;
  for (int rank = 0; rank < 7; ++rank) {
    EXPECT_LE(layout.shard(rank).numel(), 1);
    owners += layout.shard(rank).empty() ? 0 : 1;
  }
  EXPECT_EQ(owners, 3);
}

TEST(FlatLayout, AWholeParameterHasOneOwner) {
  const Parameters parameters{
      {"norm", 100}, {"matrix", 5000, 1 << 30}, {"bias", 100}};
  const FlatLayout layout = plan_flat_layout(parameters, {.ranks = 4});
  int owners = 0;
  for (int rank = 0; rank < 4; ++rank) {
    owners += parameter_slice(layout, 1, rank).in_shard.empty() ? 0 : 1;
  }
  EXPECT_EQ(owners, 1);
  // A granularity larger than the parameter costs nothing.
  EXPECT_EQ(layout.numel, 112 + 5008 + 100);
}

TEST(FlatLayout, ScalarsStartOnTheirOwnCacheLine) {
  const Parameters parameters{{"a", 1}, {"b", 1}, {"none", 0}, {"c", 1}};
  const FlatLayout layout = plan_flat_layout(parameters, {.element_bytes = 2});
  EXPECT_THAT(layout.offsets, ElementsAre(0, 32, 64, 64));
  EXPECT_EQ(layout.numel, 65);
}

TEST(FlatLayout, OneUnalignedParameterFillsTheFlatWithoutPadding) {
  const Parameters parameters{{"w", 12345}};
  const FlatLayout layout = plan_flat_layout(parameters, {.ranks = 3});
  EXPECT_EQ(layout.numel, 12345);
}

TEST(FlatLayout, SlicesAreSeenFromParameterAndShard) {
  const Parameters parameters{{"a", 16}, {"b", 48, 24}};
  const FlatLayout layout =
      plan_flat_layout(parameters, {.ranks = 2, .slice_alignment_bytes = 4});
  ASSERT_THAT(layout.cuts, ElementsAre(0, 40, 64));

  const ParameterSlice second = parameter_slice(layout, 1, 1);
  EXPECT_EQ(second.in_parameter, (ElementRange{24, 48}));
  EXPECT_EQ(second.in_shard, (ElementRange{0, 24}));
  EXPECT_TRUE(parameter_slice(layout, 0, 1).in_shard.empty());
}

std::string message_of(
    const Parameters& parameters, const FlatLayoutOptions& options) {
  try {
    (void)plan_flat_layout(parameters, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(FlatLayout, RefusesNonsenseByName) {
  const Parameters fine{{"w", 4}};
  EXPECT_THAT(message_of(fine, {.ranks = 0}), HasSubstr("at least 1 rank"));
  EXPECT_THAT(message_of(fine, {.element_bytes = 0}), HasSubstr("got 0"));
  EXPECT_THAT(
      message_of(fine, {.slice_alignment_bytes = -1}), HasSubstr("got -1"));
  EXPECT_THAT(
      message_of(fine, {.parameter_alignment_bytes = 0}), HasSubstr("got 0"));
  EXPECT_THAT(
      message_of({{"w", -4}}, {}), HasSubstr("'w' has a negative number"));
  EXPECT_THAT(
      message_of({{"w", 4, 0}}, {}), HasSubstr("'w' asks for blocks of 0"));
}

TEST(FlatLayout, RefusesWhatWouldOverflow) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(message_of({{"w", most}}, {}), HasSubstr("'w' would exceed"));
  EXPECT_THAT(
      message_of({{"a", most / 512}, {"b", most / 512}}, {}),
      HasSubstr("'b' would exceed"));
}

TEST(FlatLayout, RefusesPlacesThatDoNotExist) {
  const FlatLayout layout =
      plan_flat_layout(Parameters{{"w", 4}}, {.ranks = 2});
  EXPECT_THROW((void)parameter_slice(layout, 1, 0), Error);
  EXPECT_THROW((void)parameter_slice(layout, 0, 2), Error);
  EXPECT_THROW((void)parameter_slice(layout, 0, -1), Error);
}

}  // namespace
}  // namespace sherd::plan
