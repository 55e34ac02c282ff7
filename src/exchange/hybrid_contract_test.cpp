// SPDX-License-Identifier: Apache-2.0
//
// The contract suite over two axes: of fakes (threads) and of processes, whose
// shard axis goes over messages or shared memory.
#include "exchange/contract_processes_testing.h"
#include "exchange/hybrid_exchange.h"
#include "exchange/make_exchange.h"
#include "support/fake_ranks.h"

namespace sherd::exchange::contract {
namespace {

using test::FakeRank;

// Leaves the body of a rank that dies.
struct Died {};

// As Contender::both_axes says.
std::unique_ptr<Exchange> hybrid_over(
    FakeRank& self, int ranks, int replicas, bool both_axes) {
  const int shards = ranks / replicas;
  const auto rank_of = [&](int replica, int shard) {
    return both_axes ? shard * replicas + replica : replica * shards + shard;
  };
  const int replica = both_axes ? self.rank % replicas : self.rank / shards;
  const int shard = both_axes ? self.rank / replicas : self.rank % shards;
  std::vector<int> within;
  for (int s = 0; s < shards; ++s) {
    within.push_back(rank_of(replica, s));
  }
  std::vector<int> across;
  for (int r = 0; r < replicas; ++r) {
    across.push_back(rank_of(r, shard));
  }
  return make_hybrid_exchange(
      self.network.exchange(self.rank, "within", within),
      self.network.exchange(self.rank, "across", across),
      {.shard_index = shard, .replicas = replicas, .both_axes = both_axes});
}

Contender on_fake(
    int replicas, int shards, std::uint64_t seed, bool both_axes = false) {
  const auto run = [=](int ranks, const RunOptions& options, const Body& body) {
    FakeOptions fake;
    fake.seed = seed;
    fake.delay_max = std::chrono::microseconds(seed == 0 ? 0 : 300);
    fake.deadline = options.deadline;
    std::vector<std::string> results(static_cast<std::size_t>(ranks));
    test::run_fake_ranks(ranks, fake, [&](FakeRank& self) {
      Seat seat;
      seat.rank = self.rank;
      seat.ranks = ranks;
      seat.exchange = hybrid_over(self, ranks, replicas, both_axes);
      seat.meet = [&] { self.barrier.arrive_and_wait(); };
      seat.die = [&] {
        self.network.lose(self.rank);
        throw Died();
      };
      try {
        body(seat);
      } catch (const Died&) {
        EXPECT_EQ(options.dies, self.rank);
      }
      results[static_cast<std::size_t>(self.rank)] = seat.result;
      if (!options.disorderly) {
        self.barrier.arrive_and_wait();
      }
    });
    return results;
  };
  return {
      .name = str(both_axes ? "BothSeed" : "Seed", seed, "Of", replicas, "By"),
      .ranks = replicas * shards,
      .run_on = run,
      .replicates = false,
      .replicas = replicas,
      .both_axes = both_axes};
}

Contender on_processes(const std::string& name, int replicas, Kind kind) {
  const auto run = [=](int ranks, const RunOptions& options, const Body& body) {
    return run_in_processes(
        [=](const World& world, const std::vector<int>&) {
          return make_exchange(
              Mesh(world, {.replicate = replicas}), "contract",
              {.within = kind});
        },
        ranks, options, body);
  };
  return {
      .name = name,
      .ranks = 4,
      .run_on = run,
      .one_sided = kind == Kind::kSharedMemory,
      .replicates = false,
      .replicas = replicas};
}

std::vector<Contender> hybrids() {
  return {
      on_fake(2, 2, 0),
      on_fake(2, 3, 1),
      on_fake(3, 2, 2),
      on_fake(2, 2, 1, /*both_axes=*/true),
      on_fake(3, 2, 2, /*both_axes=*/true),
      on_processes("OnGloo", 2, Kind::kCollective),
      on_processes("OnSharedMemory", 2, Kind::kSharedMemory)};
}

SHERD_EXCHANGE_CONTRACT(Hybrid, testing::ValuesIn(hybrids()));

}  // namespace
}  // namespace sherd::exchange::contract
