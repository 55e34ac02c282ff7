// SPDX-License-Identifier: Apache-2.0
//
// Gathers from secondary shards (B3): the contract suite, what they send to whom, and ranks that want
// different units.
#include <array>
#include <random>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/check.h"
#include "exchange/collective_exchange.h"
#include "exchange/contract_fakes_testing.h"
#include "exchange/contract_processes_testing.h"
#include "exchange/hybrid_exchange.h"
#include "exchange/observed_transport_testing.h"

namespace sherd::exchange::contract {
namespace {

using BytesByPeer = std::vector<std::int64_t>;

std::unique_ptr<Exchange> grouped_exchange(
    std::shared_ptr<world::Transport> gather,
    std::shared_ptr<world::Transport> reduce,
    int group_ranks) {
  return make_collective_exchange(
      std::move(gather), std::move(reduce),
      [=](const auto& model, const auto& gathers,
          const auto& reductions) -> Result<std::unique_ptr<UnitTransport>> {
        return make_message_unit_transport(
            model, gathers, reductions, {.secondary_ranks = group_ranks});
      });
}

FakeOptions fake_of(std::uint64_t seed) {
  return {
      .seed = seed,
      .delay_max = std::chrono::microseconds(seed == 0 ? 0 : 300)};
}

// ---- the contract ----

ExchangeUnderTest grouped_fake(int ranks, int group, std::uint64_t seed) {
  return {
      str("By", group, "Seed", seed, "On"), ranks,
      [=](int n, const RunOptions& options, const Body& body) {
        return run_in_threads(
            [=](test::FakeRank& self) {
              return grouped_exchange(
                  self.network.transport(self.rank, "gather"),
                  self.network.transport(self.rank, "reduce"), group);
            },
            fake_of(seed), n, options, body);
      }};
}

// Two replicas of four ranks in groups of two.
std::unique_ptr<Exchange> grouped_replica(test::FakeRank& self, int ranks) {
  const int shards = ranks / 2;
  const int replica = self.rank / shards;
  std::vector<int> within;
  for (int rank = replica * shards; rank < (replica + 1) * shards; ++rank) {
    within.push_back(rank);
  }
  const int shard = self.rank % shards;
  return make_hybrid_exchange(
      grouped_exchange(
          self.network.transport(self.rank, "within/gather", within),
          self.network.transport(self.rank, "within/reduce", within), 2),
      self.network.exchange(self.rank, "across", {shard, shard + shards}),
      {.shard_index = shard, .replicas = 2});
}

std::vector<ExchangeUnderTest> grouped() {
  return {
      grouped_fake(4, 2, 1),
      grouped_fake(6, 3, 2),
      {.name = "OnGloo",
       .ranks = 4,
       .run_on =
           [](int ranks, const RunOptions& options, const Body& body) {
             return run_in_processes(
                 [](const World& world, const std::vector<int>& all) {
                   return grouped_exchange(
                       world::make_c10d_transport(world, "gather", all),
                       world::make_c10d_transport(world, "reduce", all), 2);
                 },
                 ranks, options, body);
           }},
      {.name = "Hybrid",
       .ranks = 8,
       .run_on =
           [](int ranks, const RunOptions& options, const Body& body) {
             return run_in_threads(
                 [ranks](test::FakeRank& self) {
                   return grouped_replica(self, ranks);
                 },
                 fake_of(1), ranks, options, body);
           },
       .replicates = false,
       .replicas = 2}};
}

// Sums of gradients are those of any exchange by messages.
const auto kGrouped = testing::ValuesIn(grouped());
INSTANTIATE_TEST_SUITE_P(Secondary, ExchangeUnshard, kGrouped, name_of);
INSTANTIATE_TEST_SUITE_P(Secondary, ExchangeBackward, kGrouped, name_of);
INSTANTIATE_TEST_SUITE_P(Secondary, ExchangeMismatch, kGrouped, name_of);
INSTANTIATE_TEST_SUITE_P(Secondary, ExchangeFailure, kGrouped, name_of);

// ---- what is sent ----

std::int64_t bytes_of_part(const UnitSpec& unit, int first, int count) {
  std::int64_t bytes = 0;
  for (const auto& flat : unit.flats) {
    for (int shard = first; shard < first + count; ++shard) {
      bytes += flat.layout.shard(shard).numel() *
          static_cast<std::int64_t>(c10::elementSize(flat.unsharded_dtype()));
    }
  }
  return bytes;
}

// What this rank sends to each peer when it gathers all units of the model.
BytesByPeer expected_bytes(
    const ModelSpec& model, int rank, int ranks, int group, bool grouped) {
  BytesByPeer bytes(static_cast<std::size_t>(ranks), 0);
  for (const auto& unit : model.units) {
    for (int peer = 0; peer < ranks; ++peer) {
      const bool near = peer / group == rank / group;
      if (peer != rank && (near || !grouped)) {
        const int shards = ranks / group;
        bytes[static_cast<std::size_t>(peer)] += grouped
            ? bytes_of_part(unit, rank % group * shards, shards)
            : bytes_of_part(unit, rank, 1);
      }
    }
  }
  return bytes;
}

TEST(SecondaryShards, B3AUnitThatAllHaveGatheredIsGatheredInsideGroups) {
  for (const auto& [ranks, group] :
       {std::pair(2, 2), {4, 2}, {4, 4}, {6, 2}, {6, 3}}) {
    SCOPED_TRACE(str(ranks, " ranks in groups of ", group));
    std::vector<BytesByPeer> sent(
        static_cast<std::size_t>(ranks),
        BytesByPeer(static_cast<std::size_t>(ranks), 0));
    const auto body = [&, ranks = ranks, group = group](Seat& seat) {
      const auto model = mixed_model(ranks);
      auto& mine = sent[static_cast<std::size_t>(seat.rank)];
      open(seat, model);
      for (const int generation : {1, 2}) {
        write_shards(*seat.exchange, model, seat.rank, generation);
        seat.exchange->publish(static_cast<std::uint64_t>(generation))
            .throw_if_failed();
        for (const bool grouped : {false, true, true}) {
          mine.assign(mine.size(), 0);
          for (std::size_t u = 0; u < model.units.size(); ++u) {
            expect_whole(
                *seat.exchange, model, static_cast<UnitId>(u), generation,
                {.in_backward = grouped, .planned = grouped});
          }
          EXPECT_EQ(
              mine, expected_bytes(model, seat.rank, ranks, group, grouped));
        }
        run_backward(*seat.exchange, model, seat.rank);
      }
      std::int64_t kept = 0;
      for (const auto& unit : model.units) {
        kept += bytes_of_part(
            unit, seat.rank % group * (ranks / group), ranks / group);
      }
      EXPECT_EQ(seat.exchange->counters().copied_shard_bytes, kept);
    };
    run_in_threads(
        [&, group = group](test::FakeRank& self) {
          return grouped_exchange(
              std::make_shared<ObservedTransport>(
                  self.network.transport(self.rank, "gather"),
                  TransportObserver{
                      .on_send =
                          [&mine = sent[static_cast<std::size_t>(self.rank)]](
                              const ObservedMessage& message) {
                            mine[static_cast<std::size_t>(message.peer)] +=
                                message.is_shard() ? message.bytes : 0;
                          }}),
              self.network.transport(self.rank, "reduce"), group);
        },
        fake_of(1), ranks, {}, body);
  }
}

// Exact in fp32 alone.
at::Tensor fractions(std::int64_t numel) {
  return at::arange(numel).to(c10::ScalarType::Float) / 1024 + 1;
}

// In full precision shards travel, which the casts that groups keep cannot replace.
TEST(SecondaryShards, B3FullPrecisionIsGatheredFromShards) {
  grouped_fake(4, 2, 1).run([](Seat& seat) {
    const auto model = make_model(
        4, {{{.numels = {301}, .param_dtype = c10::ScalarType::BFloat16}}});
    open(seat, model);
    const auto own = model.units[0].flats[0].layout.shard(seat.rank);
    seat.exchange->shard_memory(0, 0).shard.copy_(
        fractions(301).narrow(0, own.begin, own.numel()));
    for (const auto precision :
         {Precision::kFull, Precision::kParameter, Precision::kParameter,
          Precision::kFull}) {
      const auto dtype = precision == Precision::kFull
          ? c10::ScalarType::Float
          : c10::ScalarType::BFloat16;
      seat.exchange->start_unshard(0, {.precision = precision})
          .throw_if_failed();
      const auto addresses = seat.exchange->wait_for_unshard(0).value();
      EXPECT_TRUE(at::equal(
          at::from_blob(addresses[0], {301}, dtype), fractions(301).to(dtype)));
      seat.exchange->reshard(0);
    }
  });
}

// ---- ranks that differ ----

// Each rank gathers other units in backward, in another order, some as by a plan. What all have
// gathered before comes from groups, other units from all ranks, whoever wants them.
void train_in_different_orders(Seat& seat, std::uint64_t seed) {
  const auto model = mixed_model(seat.ranks);
  const auto units = static_cast<int>(model.units.size());
  open(seat, model);
  std::mt19937_64 common(seed);
  std::mt19937_64 own(seed * 1000 + static_cast<std::uint64_t>(seat.rank));
  const auto draw = [units](std::mt19937_64& random) {
    return static_cast<UnitId>(random() % static_cast<std::uint64_t>(units));
  };
  for (int generation = 1; generation <= 4; ++generation) {
    write_shards(*seat.exchange, model, seat.rank, generation);
    seat.exchange->publish(static_cast<std::uint64_t>(generation))
        .throw_if_failed();
    for (int gather = 0; gather < units; ++gather) {
      expect_whole(*seat.exchange, model, draw(common), generation);
    }
    const auto gathers = own() % 8;
    for (std::uint64_t gather = 0; gather < gathers; ++gather) {
      expect_whole(
          *seat.exchange, model, draw(own), generation,
          {.in_backward = true, .planned = own() % 2 == 0});
    }
    run_backward(*seat.exchange, model, seat.rank, generation);
    expect_sums(*seat.exchange, model, seat.rank, seat.ranks, generation);
  }
}

TEST(SecondaryShards, B3RanksMayWantDifferentUnitsInBackward) {
  for (const auto& [ranks, group] :
       {std::pair(2, 2), {3, 3}, {4, 2}, {6, 2}, {6, 3}}) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(str(ranks, " ranks by ", group, ", seed ", seed));
      grouped_fake(ranks, group, seed).run([seed](Seat& seat) {
        train_in_different_orders(seat, seed);
      });
    }
  }
}

}  // namespace
}  // namespace sherd::exchange::contract
