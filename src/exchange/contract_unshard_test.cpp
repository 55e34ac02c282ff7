// SPDX-License-Identifier: Apache-2.0
//
// The contract of shards and whole units.
#include "exchange/contract_testing.h"

#include <torch/torch.h>

namespace sherd::exchange::contract {
namespace {

TEST_P(ExchangeUnshard, ShardsAreZeroAndKeepTheirAddress) {
  with().run([&](Seat& seat) {
    const auto model = mixed_model(owners());
    open(seat, model);
    std::vector<const void*> before;
    const auto each = [&](const auto& visit) {
      for (std::size_t u = 0; u < model.units.size(); ++u) {
        for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
          visit(
              seat.exchange->shard_memory(
                  static_cast<UnitId>(u), static_cast<int>(f)),
              model.units[u].flats[f]);
        }
      }
    };
    each([&](const ShardMemory& memory, const FlatSpec& flat) {
      EXPECT_EQ(memory.shard.scalar_type(), flat.dtype);
      EXPECT_EQ(
          memory.shard.numel(),
          flat.layout.shard(seat.rank % owners()).numel());
      EXPECT_EQ(memory.shard.count_nonzero().item<std::int64_t>(), 0);
      ASSERT_EQ(memory.gradient.defined(), flat.trainable);
      if (flat.trainable) {
        EXPECT_EQ(memory.gradient.numel(), memory.shard.numel());
        EXPECT_EQ(memory.gradient.count_nonzero().item<std::int64_t>(), 0);
      }
      before.push_back(memory.shard.const_data_ptr());
    });
    write_shards(*seat.exchange, model, seat.rank, 1);
    expect_whole(*seat.exchange, model, 0, 1);
    run_backward(*seat.exchange, model, seat.rank);
    seat.exchange->publish(1).throw_if_failed();
    std::size_t at = 0;
    each([&](const ShardMemory& memory, const FlatSpec&) {
      EXPECT_EQ(memory.shard.const_data_ptr(), before[at++]);
    });
  });
}

TEST_P(ExchangeUnshard, IsTheConcatenationOfAllShardsBitForBit) {
  with().run([&](Seat& seat) {
    const auto model = mixed_model(owners());
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 1);
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      expect_whole(*seat.exchange, model, static_cast<UnitId>(u), 1);
    }
  });
}

TEST_P(ExchangeUnshard, SeesWhatWasPublishedSince) {
  with().run([&](Seat& seat) {
    const auto model = mixed_model(owners());
    open(seat, model);
    for (int generation = 1; generation <= 4; ++generation) {
      write_shards(*seat.exchange, model, seat.rank, generation);
      seat.exchange->publish(static_cast<std::uint64_t>(generation))
          .throw_if_failed();
      expect_whole(*seat.exchange, model, 1, generation);
      expect_whole(*seat.exchange, model, 0, generation);
      expect_whole(*seat.exchange, model, 1, generation);
      run_backward(*seat.exchange, model, seat.rank);
    }
    EXPECT_EQ(seat.exchange->counters().unshards, 12);
    EXPECT_EQ(
        seat.exchange->counters().unsharded_bytes,
        8 * unit_bytes(model.units[1]) + 4 * unit_bytes(model.units[0]));
  });
}

TEST_P(ExchangeUnshard, UnitsThatAreWholeTogetherDoNotOverlap) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 2);
    std::vector<at::Tensor> whole;
    for (UnitId unit = 0; unit < 3; ++unit) {
      seat.exchange->start_unshard(unit, {}).throw_if_failed();
    }
    for (const UnitId unit : {2, 0, 1}) {  // Another order than started.
      const auto at = seat.exchange->wait_for_unshard(unit).value();
      whole.push_back(read_whole(
          *seat.exchange, unit, 0, at[0], pattern(model, unit, 0, 2)));
    }
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(
          torch::equal(whole[i], pattern(model, std::array{2, 0, 1}[i], 0, 2)));
    }
    for (const UnitId unit : {0, 1, 2}) {
      seat.exchange->reshard(unit);
    }
  });
}

TEST_P(ExchangeUnshard, SlotsStayWithinTheBudget) {
  with().run([&](Seat& seat) {
    auto model = plain_model(owners());
    const auto largest = unit_bytes(model.units[2]);
    const auto second = unit_bytes(model.units[0]);
    model.unsharded_bytes_max = largest + second;
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 0);
    const UnshardOptions options{
        .unsharded_bytes_max = model.unsharded_bytes_max};
    for (const UnitId unit : {0, 2, 1, 2, 1, 0, 2}) {
      expect_whole(*seat.exchange, model, unit, 0, options);
      EXPECT_LE(
          seat.exchange->counters().slot_bytes, model.unsharded_bytes_max);
    }
    EXPECT_LE(
        seat.exchange->counters().slot_bytes_peak, model.unsharded_bytes_max);
    if (with().one_sided) {  // Nothing is ever gathered.
      EXPECT_EQ(seat.exchange->counters().slot_bytes_peak, 0);
      return;
    }
    EXPECT_GE(seat.exchange->counters().slot_bytes_peak, largest);
    // A raised budget gives room for all three.
    const UnshardOptions raised{
        .unsharded_bytes_max =
            model.unsharded_bytes_max + unit_bytes(model.units[1])};
    for (const UnitId unit : {0, 1, 2}) {
      seat.exchange->start_unshard(unit, raised).throw_if_failed();
      seat.exchange->wait_for_unshard(unit).status().throw_if_failed();
    }
    EXPECT_LE(seat.exchange->counters().slot_bytes, raised.unsharded_bytes_max);
  });
}

TEST_P(ExchangeUnshard, AUnitWithoutBytesNeedsNoRoom) {
  with().run([&](Seat& seat) {
    auto model = make_model(owners(), {{{.numels = {64}}}, {{.numels = {0}}}});
    model.unsharded_bytes_max = unit_bytes(model.units[0]);
    open(seat, model);
    const UnshardOptions options{
        .unsharded_bytes_max = model.unsharded_bytes_max};
    for (const UnitId unit : {0, 1}) {
      seat.exchange->start_unshard(unit, options).throw_if_failed();
      seat.exchange->wait_for_unshard(unit).status().throw_if_failed();
    }
    EXPECT_LE(seat.exchange->counters().slot_bytes, model.unsharded_bytes_max);
  });
}

TEST_P(ExchangeUnshard, AReplicatedUnitIsItsShard) {
  if (!with().replicates) {
    return;
  }
  with().run([&](Seat& seat) {
    auto model = mixed_model(owners());
    model.placement = ModelPlacement::kReplicate;
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 3);
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      expect_whole(*seat.exchange, model, static_cast<UnitId>(u), 3);
    }
    seat.exchange->start_unshard(0, {}).throw_if_failed();
    const auto at = seat.exchange->wait_for_unshard(0).value();
    EXPECT_EQ(at[0], seat.exchange->shard_memory(0, 0).shard.const_data_ptr());
  });
}

// Not exact in bf16: a gather of casts differs from one of shards.
ModelSpec bf16_model(int ranks) {
  return make_model(
      ranks,
      {{{.numels = {70, 41}, .param_dtype = at::kBFloat16},
        {.numels = {9}, .trainable = false}}});
}

void write_noise(Exchange& exchange, const ModelSpec& model, int rank) {
  for (const int flat : {0, 1}) {
    const auto range = owned_by(model, 0, flat, rank);
    exchange.shard_memory(0, flat).shard.copy_(
        noise(model, 0, flat, 5).narrow(0, range.begin, range.numel()));
  }
}

TEST_P(ExchangeUnshard, T20WholeUnitsAreTheCastOfTheShards) {
  with().run([&](Seat& seat) {
    const auto model = bf16_model(owners());
    open(seat, model);
    write_noise(*seat.exchange, model, seat.rank);
    seat.exchange->publish(1).throw_if_failed();
    seat.exchange->start_unshard(0, {}).throw_if_failed();
    const auto at = seat.exchange->wait_for_unshard(0).value();
    const auto cast = noise(model, 0, 0, 5).to(at::kBFloat16);
    EXPECT_TRUE(read_whole(*seat.exchange, 0, 0, at[0], cast).equal(cast));
    const auto plain = noise(model, 0, 1, 5);
    EXPECT_TRUE(read_whole(*seat.exchange, 0, 1, at[1], plain).equal(plain));
    // Two bytes an element travelled, four lie in the shard.
    EXPECT_EQ(
        seat.exchange->counters().unsharded_bytes, unit_bytes(model.units[0]));
    EXPECT_EQ(flat_bytes(model.units[0].flats[0]), 2 * cast.numel());
    EXPECT_EQ(
        seat.exchange->shard_memory(0, 0).shard.scalar_type(), at::kFloat);
    seat.exchange->reshard(0);
  });
}

TEST_P(ExchangeUnshard, InFullPrecisionAUnitIsItsShardsOutsideTheLimit) {
  with().run([&](Seat& seat) {
    auto model = bf16_model(owners());
    model.unsharded_bytes_max = unit_bytes(model.units[0]);
    open(seat, model);
    write_noise(*seat.exchange, model, seat.rank);
    const UnshardOptions options{
        .unsharded_bytes_max = model.unsharded_bytes_max,
        .precision = Precision::kFull};
    for (int round = 0; round < 2; ++round) {
      seat.exchange->start_unshard(0, options).throw_if_failed();
      const auto at = seat.exchange->wait_for_unshard(0).value();
      for (const int flat : {0, 1}) {
        const auto all = noise(model, 0, flat, 5);
        const auto* address = at[static_cast<std::size_t>(flat)];
        EXPECT_TRUE(
            read_whole(*seat.exchange, 0, flat, address, all).equal(all));
      }
      seat.exchange->reshard(0);
    }
    EXPECT_LE(
        seat.exchange->counters().slot_bytes_peak, model.unsharded_bytes_max);
  });
}

// A cast for each gather would find the new values.
TEST_P(ExchangeUnshard, ShardsAreCastOnceAGeneration) {
  with().run([&](Seat& seat) {
    const auto model = make_model(
        owners(), {{{.numels = {90}, .param_dtype = at::kBFloat16}}});
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 1);
    expect_whole(*seat.exchange, model, 0, 1);
    seat.meet();  // Nobody sends any more.
    write_shards(*seat.exchange, model, seat.rank, 2);
    expect_whole(*seat.exchange, model, 0, 1);
    seat.meet();
    seat.exchange->publish(1).throw_if_failed();
    expect_whole(*seat.exchange, model, 0, 2);
  });
}

TEST_P(ExchangeUnshard, AReplicatedUnitThatIsWholeIsRefreshedByAPublish) {
  if (!with().replicates) {
    return;
  }
  with().run([&](Seat& seat) {
    auto model = make_model(
        owners(), {{{.numels = {90}, .param_dtype = at::kBFloat16}}});
    model.placement = ModelPlacement::kReplicate;
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 1);
    seat.exchange->start_unshard(0, {}).throw_if_failed();
    const auto at = seat.exchange->wait_for_unshard(0).value();
    const auto expect = [&](int salt) {
      const auto expected = pattern(model, 0, 0, salt).to(at::kBFloat16);
      EXPECT_TRUE(
          read_whole(*seat.exchange, 0, 0, at[0], expected).equal(expected));
    };
    expect(1);
    write_shards(*seat.exchange, model, seat.rank, 2);
    seat.exchange->publish(1).throw_if_failed();
    expect(2);
  });
}

TEST_P(ExchangeUnshard, StartedAheadMayBeWaitedForInAnyOrder) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 3);
    for (const UnitId unit : {0, 1, 2}) {
      seat.exchange->start_unshard(unit, {}).throw_if_failed();
    }
    // Nor does other work have to wait for them.
    run_backward(*seat.exchange, model, seat.rank);
    for (const UnitId unit : {2, 0, 1}) {
      const auto addresses = seat.exchange->wait_for_unshard(unit);
      const auto expected = pattern(model, unit, 0, 3);
      const auto found = read_whole(
          *seat.exchange, unit, 0, addresses.value().at(0), expected);
      EXPECT_TRUE(found.equal(expected)) << "unit " << unit;
      seat.exchange->reshard(unit);
    }
  });
}

}  // namespace
}  // namespace sherd::exchange::contract
