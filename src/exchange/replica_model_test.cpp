// SPDX-License-Identifier: Apache-2.0
#include "exchange/replica_model.h"

#include <algorithm>
#include <gtest/gtest.h>
#include "exchange/contract.h"

namespace sherd::exchange {
namespace {

using contract::make_model;
using contract::mixed_model;

TEST(ReplicaModel, HasEveryParameterWithWhatLiesInTheShard) {
  const auto model =
      make_model(3, {{{.numels = {100, 5, 70}}, {.numels = {2}}}});
  std::vector<std::int64_t> numels(4, 0);
  for (int shard = 0; shard < 3; ++shard) {
    const auto across = replica_model(model, shard, 2);
    EXPECT_EQ(across.placement, Placement::kReplicate);
    EXPECT_TRUE(across.gradients_only);
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

TEST(ReplicaModel, CutsCoverTheShardWhateverItsSize) {
  for (const int owners : {1, 2, 3, 7}) {
    const auto model = mixed_model(owners);
    for (const int replicas : {1, 2, 3, 5}) {
      for (int shard = 0; shard < owners; ++shard) {
        for (const auto& unit : replica_model(model, shard, replicas).units) {
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

TEST(ReplicaModel, GradientsTravelAsThoseOfTheModel) {
  const auto model = make_model(
      2,
      {{{.numels = {9}},
        {.numels = {9}, .param_dtype = at::kBFloat16},
        {.numels = {9},
         .param_dtype = at::kBFloat16,
         .reduce_dtype = at::kFloat}}});
  const auto across = replica_model(model, 0, 2);
  for (std::size_t f = 0; f < 3; ++f) {
    const auto& flat = across.units[0].flats[f];
    EXPECT_EQ(flat.slot_dtype(), model.units[0].flats[f].slot_dtype());
    EXPECT_EQ(flat.dtype, at::kFloat);
  }
}

}  // namespace
}  // namespace sherd::exchange
