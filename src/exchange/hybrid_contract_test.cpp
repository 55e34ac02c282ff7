// SPDX-License-Identifier: Apache-2.0
//
// The contract suite over two axes: of fakes (threads) and of processes, each of
// whose axes goes over messages or shared memory.
#include "exchange/contract_fakes_testing.h"
#include "exchange/contract_processes_testing.h"
#include "exchange/hybrid_exchange.h"
#include "exchange/make_exchange.h"

namespace sherd::exchange::contract {
namespace {

using test::FakeRank;

struct Axes {
  int replica = 0;  // Of this rank.
  std::vector<int> within;
  std::vector<int> across;
  MeshPosition place;
};

// As ExchangeUnderTest::both_axes says.
Axes axes_of(int rank, int ranks, int replicas, bool both_axes) {
  const int shards = ranks / replicas;
  const auto rank_of = [&](int replica, int shard) {
    return both_axes ? shard * replicas + replica : replica * shards + shard;
  };
  Axes axes;
  axes.replica = both_axes ? rank % replicas : rank / shards;
  axes.place = {
      .shard_index = both_axes ? rank / replicas : rank % shards,
      .replicas = replicas,
      .both_axes = both_axes};
  for (int s = 0; s < shards; ++s) {
    axes.within.push_back(rank_of(axes.replica, s));
  }
  for (int r = 0; r < replicas; ++r) {
    axes.across.push_back(rank_of(r, axes.place.shard_index));
  }
  return axes;
}

std::unique_ptr<Exchange> hybrid_over(
    FakeRank& self, int ranks, int replicas, bool both_axes) {
  const auto axes = axes_of(self.rank, ranks, replicas, both_axes);
  return make_hybrid_exchange(
      self.network.exchange(self.rank, "within", axes.within),
      self.network.exchange(self.rank, "across", axes.across), axes.place);
}

ExchangeUnderTest on_fake(
    int replicas, int shards, std::uint64_t seed, bool both_axes = false) {
  const auto run = [=](int ranks, const RunOptions& options, const Body& body) {
    FakeOptions fake;
    fake.seed = seed;
    fake.delay_max = std::chrono::microseconds(seed == 0 ? 0 : 300);
    return run_in_threads(
        [=](FakeRank& self) {
          return hybrid_over(self, ranks, replicas, both_axes);
        },
        fake, ranks, options, body);
  };
  return {
      .name = str(both_axes ? "BothSeed" : "Seed", seed, "Of", replicas, "By"),
      .ranks = replicas * shards,
      .run_on = run,
      .replicates = false,
      .replicas = replicas,
      .both_axes = both_axes};
}

struct Kinds {
  Kind within;
  Kind across;
  bool both_axes = false;
};

ExchangeUnderTest on_processes(
    const std::string& name, int shards, int replicas, const Kinds& kinds) {
  const auto run = [=](int ranks, const RunOptions& options, const Body& body) {
    return run_in_processes(
        [=](const World& world, const std::vector<int>&) {
          const auto axes =
              axes_of(world.rank(), ranks, replicas, kinds.both_axes);
          auto within = make_exchange(
              world, str("replica", axes.replica), axes.within, kinds.within);
          auto across = make_exchange(
              world, str("shard", axes.place.shard_index), axes.across,
              kinds.across);
          return make_hybrid_exchange(
              std::move(within), std::move(across), axes.place);
        },
        ranks, options, body);
  };
  return {
      .name = name,
      .ranks = shards * replicas,
      .run_on = run,
      .one_sided = kinds.within == Kind::kSharedMemory,
      .replicates = false,
      .replicas = replicas,
      .both_axes = kinds.both_axes};
}

constexpr auto kMessages = Kind::kCollective;
constexpr auto kShared = Kind::kSharedMemory;

std::vector<ExchangeUnderTest> hybrids() {
  return {
      on_fake(2, 2, 0),
      on_fake(2, 3, 1),
      on_fake(3, 2, 2),
      on_fake(2, 2, 1, /*both_axes=*/true),
      on_fake(3, 2, 2, /*both_axes=*/true),
      on_processes("OnGloo", 2, 2, {kMessages, kMessages}),
      on_processes("OnSharedMemoryAndGloo", 2, 2, {kShared, kMessages}),
      on_processes("OnGlooAndSharedMemory", 2, 2, {kMessages, kShared}),
      on_processes("OnSharedMemory", 2, 2, {kShared, kShared}),
      on_processes("OnSharedMemory", 2, 3, {kShared, kShared}),
      on_processes("BothOnSharedMemory", 2, 2, {kShared, kShared, true}),
      on_processes(
          "BothOnGlooAndSharedMemory", 2, 2, {kMessages, kShared, true})};
}

SHERD_EXCHANGE_CONTRACT(Hybrid, testing::ValuesIn(hybrids()));

}  // namespace
}  // namespace sherd::exchange::contract
