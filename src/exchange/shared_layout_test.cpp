// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared_layout.h"

#include <algorithm>
#include <gtest/gtest.h>
#include "exchange/contract_testing.h"

namespace sherd::exchange {
namespace {

using Bytes = std::vector<bool>;

void mark(Bytes& bytes, std::int64_t begin, std::int64_t count) {
  std::fill_n(bytes.begin() + begin, count, true);
}

// What a rank must be able to write, and what pages it alone or others own.
struct Written {
  Bytes mine;
  Bytes others;
};

Written written_by(
    const ModelSpec& model,
    const SharedLayout& layout,
    std::int64_t reserved,
    int ranks,
    int rank) {
  Written written{
      Bytes(static_cast<std::size_t>(layout.bytes)),
      Bytes(static_cast<std::size_t>(layout.bytes))};
  mark(written.mine, 0, reserved);
  for (int r = 0; r < ranks; ++r) {
    auto& bytes = r == rank ? written.mine : written.others;
    for (std::size_t u = 0; u < layout.flats.size(); ++u) {
      for (std::size_t f = 0; f < layout.flats[u].size(); ++f) {
        const auto& flat = model.units[u].flats[f];
        const auto element =
            static_cast<std::int64_t>(c10::elementSize(flat.unsharded_dtype()));
        const auto slice = flat.layout.shard(r);
        mark(
            bytes, layout.flats[u][f] + slice.begin * element,
            slice.numel() * element);
      }
    }
    const auto i = static_cast<std::size_t>(r);
    mark(
        bytes, layout.slot_regions[i],
        layout.slot_region_bytes + layout.heap_bytes);
    if (!layout.gradient_regions.empty()) {
      mark(bytes, layout.gradient_regions[i], layout.gradient_region_bytes);
    }
  }
  return written;
}

void expect_pages(const ModelSpec& model, int ranks) {
  constexpr std::int64_t kReserved = 5000;
  const auto layout = plan_shared_layout(model, ranks, kReserved);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto written = written_by(model, layout, kReserved, ranks, rank);
    Bytes read_only(static_cast<std::size_t>(layout.bytes));
    std::int64_t end = -1;
    for (const auto& range : read_only_ranges(model, layout, rank)) {
      EXPECT_EQ(range.begin % kPage, 0);
      EXPECT_EQ(range.end % kPage, 0);
      EXPECT_GT(range.begin, end);
      EXPECT_GT(range.end, range.begin);
      end = range.end;
      mark(read_only, range.begin, range.end - range.begin);
    }
    for (std::int64_t page = 0; page < layout.bytes; page += kPage) {
      const auto any = [&](const Bytes& bytes) {
        const auto first = bytes.begin() + page;
        return std::find(first, first + kPage, true) != first + kPage;
      };
      if (any(written.mine)) {
        EXPECT_FALSE(any(read_only)) << "rank " << rank << ", byte " << page;
      } else if (any(written.others)) {
        EXPECT_TRUE(any(read_only)) << "rank " << rank << ", byte " << page;
      }
    }
  }
}

// Slices that begin and end inside of pages, small and empty ones.
TEST(SharedLayout, ARankOnlyReadsThePagesInWhichItHasNothing) {
  for (const int ranks : {1, 2, 3, 7}) {
    expect_pages(contract::mixed_model(ranks), ranks);
    auto model = contract::make_model(
        ranks,
        {{{.numels = {70'001}}, {.numels = {9000}, .dtype = at::kDouble}},
         {{.numels = {3}}, {.numels = {30'000}, .param_dtype = at::kBFloat16}},
         {{.numels = {8192}, .granularity = 8192}}});
    expect_pages(model, ranks);
    model.share_gradients = true;
    expect_pages(model, ranks);
    model.share_gradients = false;
    model.placement = ModelPlacement::kReplicate;
    expect_pages(model, ranks);
    model.own_shards = false;
    model.own_gradients = false;
    expect_pages(model, ranks);
  }
}

// Frozen flats have none.
TEST(SharedLayout, SharedGradientsTakeTheirBytesOnceHoweverManyRanks) {
  for (const int ranks : {1, 2, 3, 7}) {
    auto model = contract::make_model(
        ranks,
        {{{.numels = {3 * kPage}}, {.numels = {9000}, .trainable = false}},
         {{.numels = {kPage}, .param_dtype = at::kBFloat16}}});
    const auto without = plan_shared_layout(model, ranks, 0);
    model.share_gradients = true;
    const auto with = plan_shared_layout(model, ranks, 0);
    EXPECT_EQ(with.bytes - without.bytes, 4 * 4 * kPage);
    EXPECT_EQ(with.touched_bytes - without.touched_bytes, 4 * 4 * kPage);
  }
}

// The kernel has so many mappings for all of a process.
TEST(SharedLayout, VeryManyFlatsLeaveTheKernelMappings) {
  const std::vector<std::vector<contract::FlatSketch>> units(
      10'000, {{.numels = {4096}}});
  const auto model = contract::make_model(2, units);
  const auto ranges =
      read_only_ranges(model, plan_shared_layout(model, 2, 0), 1);
  EXPECT_GT(ranges.size(), 1000U);
  EXPECT_LT(ranges.size(), 10'000U);
}

TEST(RegionAllocator, LendsTheLowestRangeThatFits) {
  RegionAllocator region(1024);
  EXPECT_EQ(region.take(200), 0);
  EXPECT_EQ(region.take(1), 256);
  EXPECT_EQ(region.take(256), 384);
  EXPECT_EQ(region.take(512), std::nullopt);
  EXPECT_EQ(region.taken_bytes(), 640);

  region.give_back(0);

  EXPECT_EQ(region.take(300), 640);  // Not into the hole.
  EXPECT_EQ(region.take(256), 0);
  EXPECT_EQ(region.taken_bytes(), 1024);
  EXPECT_EQ(region.take(1), std::nullopt);
  EXPECT_EQ(region.taken_bytes_peak(), 1024);
}

}  // namespace
}  // namespace sherd::exchange
