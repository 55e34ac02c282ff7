// SPDX-License-Identifier: Apache-2.0
#include "exchange/private_buffers.h"

#include <gtest/gtest.h>
#include "exchange/contract_testing.h"

namespace sherd::exchange {
namespace {

using contract::mixed_model;
using contract::plain_model;

std::uintptr_t address(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
}

TEST(PrivateBuffers, ShardsAreAsLongAsTheCutsSay) {
  for (const int ranks : {2, 3, 7}) {
    const auto model = mixed_model(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const PrivateBuffers memories(model, rank);
      for (std::size_t u = 0; u < model.units.size(); ++u) {
        for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
          const auto unit = static_cast<UnitId>(u);
          const auto flat = static_cast<int>(f);
          const auto range = model.units[u].flats[f].layout.shard(rank);
          EXPECT_EQ(memories.owned(unit, flat), range);
          EXPECT_EQ(memories.shard(unit, flat).shard.numel(), range.numel());
          EXPECT_EQ(
              memories.shard(unit, flat).gradient.defined(),
              model.units[u].flats[f].trainable);
        }
      }
    }
  }
}

TEST(PrivateBuffers, FlatsOfAUnitLieInOneSlotOn128Bytes) {
  const auto model = mixed_model(3);
  PrivateBuffers memories(model, 1);
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const auto& unit = model.units[u];
    const auto flats = memories.open_unit(static_cast<UnitId>(u));
    ASSERT_EQ(flats.size(), unit.flats.size());
    const auto begin = address(flats[0]);
    auto end = begin;
    for (std::size_t f = 0; f < flats.size(); ++f) {
      EXPECT_EQ(flats[f].scalar_type(), unit.flats[f].unsharded_dtype());
      EXPECT_EQ(flats[f].numel(), unit.flats[f].layout.numel);
      EXPECT_EQ(address(flats[f]) % 128, 0U);
      EXPECT_GE(address(flats[f]), end);
      end = address(flats[f]) + flats[f].nbytes();
      flats[f].fill_(1);
    }
    EXPECT_LE(static_cast<std::int64_t>(end - begin), unit_bytes(unit));
  }
}

// A communication hook may keep its bucket, whose memory is used again.
TEST(PrivateBuffers, AGradientSlotOutlivesThemWhileSomebodyHasIt) {
  const auto model = plain_model(1);
  at::Tensor kept;
  {
    PrivateBuffers memories(model, 0);
    kept = memories.open_gradients(0).front();
    kept.fill_(3);
    auto slot = memories.take_gradients(0);
    memories.release(slot);
  }
  EXPECT_EQ(kept.sum().item<float>(), 3.0F * static_cast<float>(kept.numel()));
}

// Longer than a block of the cast, at an odd length.
TEST(PrivateBuffers, PublishedShardsAreCastInEveryElement) {
  const auto model = contract::make_model(
      1, {{{.numels = {100'001}, .param_dtype = at::kBFloat16}}});
  PrivateBuffers memories(model, 0);
  const auto shard = memories.shard(0, 0).shard;
  shard.copy_(contract::noise(model, 0, 0, 1));
  const auto found = memories.published_shard(0, 0, Precision::kParameter, 1);
  EXPECT_TRUE(found.equal(shard.to(at::kBFloat16)));
  EXPECT_TRUE(
      memories.published_shard(0, 0, Precision::kFull, 1).is_same(shard));
}

TEST(PrivateBuffers, AReplicatedUnitBorrowsNothing) {
  auto model = mixed_model(2);
  model.placement = ModelPlacement::kReplicate;
  PrivateBuffers memories(model, 1);
  const auto flats = memories.open_unit(0);
  EXPECT_EQ(
      flats[0].const_data_ptr(), memories.shard(0, 0).shard.const_data_ptr());
  EXPECT_EQ(
      memories.owned(0, 0),
      (plan::ElementRange{0, model.units[0].flats[0].layout.numel}));
  memories.drop_unit(0);
  ExchangeCounters counters;
  memories.add_to(counters);
  EXPECT_EQ(counters.slot_bytes_peak, 0);
}

TEST(PrivateBuffers, ADroppedUnitsSlotIsUsedAgain) {
  const auto model = plain_model(2);
  PrivateBuffers memories(model, 0);
  const auto first = address(memories.open_unit(1)[0]);
  memories.drop_unit(1);
  EXPECT_EQ(address(memories.open_unit(1)[0]), first);
}

TEST(PrivateBuffers, ATakenGradientSlotLivesBesideTheNextOne) {
  const auto model = plain_model(2);
  PrivateBuffers memories(model, 0);
  const auto first = memories.open_gradients(2)[0];
  EXPECT_EQ(address(memories.open_gradients(2)[0]), address(first));
  auto taken = memories.take_gradients(2);
  const auto second = memories.open_gradients(2)[0];
  EXPECT_NE(address(second), address(first));
  memories.release(taken);
  EXPECT_TRUE(taken.flats.empty());
  auto also_taken = memories.take_gradients(2);
  EXPECT_EQ(address(memories.open_gradients(2)[0]), address(first));
  memories.release(also_taken);
}

TEST(PrivateBuffers, ASlotInPlaceIsTheShardedGradients) {
  auto model = mixed_model(2);
  model.placement = ModelPlacement::kReplicate;
  PrivateBuffers memories(model, 0);
  const auto& slot = memories.open_gradients_in_place(0);
  EXPECT_EQ(address(slot[0]), address(memories.shard(0, 0).gradient));
  EXPECT_FALSE(slot[1].defined());  // Frozen.
  EXPECT_EQ(&memories.open_gradients(0), &slot);
  auto taken = memories.take_gradients(0);
  memories.release(taken);
  EXPECT_NE(
      address(memories.open_gradients(0)[0]),
      address(memories.shard(0, 0).gradient));
}

TEST(PrivateBuffers, FrozenFlatsHaveNoGradientSlot) {
  const auto model = mixed_model(2);
  PrivateBuffers memories(model, 0);
  const auto& slot = memories.open_gradients(0);
  EXPECT_TRUE(slot[0].defined());
  EXPECT_FALSE(slot[1].defined());
  EXPECT_TRUE(slot[2].defined());
}

TEST(PrivateBuffers, StagingOfNoBytesIsNoMemory) {
  const auto model = plain_model(2);
  PrivateBuffers memories(model, 0);
  auto none = memories.borrow_staging(0);
  EXPECT_EQ(none.memory, nullptr);
  memories.release(none);
  auto some = memories.borrow_staging(100);
  EXPECT_NE(some.memory, nullptr);
  memories.release(some);
  EXPECT_EQ(some.memory, nullptr);
}

}  // namespace
}  // namespace sherd::exchange
