// SPDX-License-Identifier: Apache-2.0
#include "exchange/hybrid_models.h"

#include <algorithm>
#include <gtest/gtest.h>
#include "exchange/contract_testing.h"

namespace sherd::exchange {
namespace {

using contract::make_model;
using contract::mixed_model;

TEST(HybridModels, HasEveryParameterWithWhatLiesInTheShard) {
  const auto model =
      make_model(3, {{{.numels = {100, 5, 70}}, {.numels = {2}}}});
  std::vector<std::int64_t> numels(4, 0);
  for (int shard = 0; shard < 3; ++shard) {
    const auto across =
        model_across(model, {.shard_index = shard, .replicas = 2});
    EXPECT_EQ(across.placement, ModelPlacement::kReplicate);
    EXPECT_FALSE(across.own_shards);
    EXPECT_FALSE(across.own_gradients);
    std::size_t parameter = 0;
    for (std::size_t f = 0; f < 2; ++f) {
      const auto& flat = across.units[0].flats[f];
      EXPECT_EQ(flat.names, model.units[0].flats[f].names);
      EXPECT_EQ(
          flat.layout.numel,
          model.units[0].flats[f].layout.shard(shard).numel());
      std::int64_t end = 0;
      for (int p = 0; p < flat.layout.parameters(); ++p) {
        const auto i = static_cast<std::size_t>(p);
        EXPECT_GE(flat.layout.offsets[i], end);
        end = flat.layout.offsets[i] + flat.layout.numels[i];
        numels[parameter++] += flat.layout.numels[i];
      }
      EXPECT_LE(end, flat.layout.numel);
    }
  }
  EXPECT_EQ(numels, (std::vector<std::int64_t>{100, 5, 70, 2}));
}

TEST(HybridModels, CutsCoverTheShardWhateverItsSize) {
  for (const int owners : {1, 2, 3, 7}) {
    const auto model = mixed_model(owners);
    for (const int replicas : {1, 2, 3, 5}) {
      for (int shard = 0; shard < owners; ++shard) {
        const auto across =
            model_across(model, {.shard_index = shard, .replicas = replicas});
        for (const auto& unit : across.units) {
          for (const auto& flat : unit.flats) {
            const auto& cuts = flat.layout.cuts;
            ASSERT_EQ(flat.layout.ranks(), replicas);
            EXPECT_EQ(cuts.front(), 0);
            EXPECT_EQ(cuts.back(), flat.layout.numel);
            EXPECT_TRUE(std::is_sorted(cuts.begin(), cuts.end()));
          }
        }
      }
    }
  }
}

// Every element has one owner, and no block of a parameter is split.
TEST(HybridModels, OverBothAxesTheModelsCutsAreKept) {
  const auto model = make_model(
      6, {{{.numels = {90, 33}}, {.numels = {64}, .granularity = 64}}});
  for (const int replicas : {2, 3}) {
    for (int owner = 0; owner < 6; ++owner) {
      const MeshPosition place{
          .shard_index = owner / replicas,
          .replicas = replicas,
          .both_axes = true};
      const auto within = model_within(model, place);
      const auto across = model_across(model, place);
      EXPECT_EQ(across.placement, ModelPlacement::kShard);
      for (std::size_t f = 0; f < 2; ++f) {
        const auto& whole = model.units[0].flats[f].layout;
        const auto outer = within.units[0].flats[f].layout;
        ASSERT_EQ(outer.ranks(), 6 / replicas);
        const auto inner =
            across.units[0].flats[f].layout.shard(owner % replicas);
        const auto begin = outer.shard(place.shard_index).begin;
        EXPECT_EQ(
            whole.shard(owner),
            (plan::ElementRange{begin + inner.begin, begin + inner.end}));
      }
    }
  }
}

TEST(HybridModels, GradientsTravelAsThoseOfTheModel) {
  const auto model = make_model(
      2,
      {{{.numels = {9}},
        {.numels = {9}, .param_dtype = at::kBFloat16},
        {.numels = {9},
         .param_dtype = at::kBFloat16,
         .reduce_dtype = at::kFloat}}});
  const auto across = model_across(model, {.shard_index = 0, .replicas = 2});
  for (std::size_t f = 0; f < 3; ++f) {
    const auto& flat = across.units[0].flats[f];
    EXPECT_EQ(flat.slot_dtype(), model.units[0].flats[f].slot_dtype());
    EXPECT_EQ(flat.dtype, at::kFloat);
  }
}

}  // namespace
}  // namespace sherd::exchange
