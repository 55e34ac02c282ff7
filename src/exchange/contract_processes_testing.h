// SPDX-License-Identifier: Apache-2.0
//
// Runs the contract suite with real processes, which die by SIGKILL. Only for tests.
#pragma once

#include <csignal>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>
#include "exchange/contract_testing.h"
#include "support/ranks.h"

namespace sherd::exchange::contract {

using MakeExchange = std::function<std::unique_ptr<Exchange>(
    const World& world, const std::vector<int>& ranks)>;

inline std::vector<std::string> run_in_processes(
    const MakeExchange& make,
    int ranks,
    const RunOptions& options,
    const Body& body,
    const std::vector<int>& hosts = {}) {
  test::RankOptions rank_options;
  rank_options.world.deadline = options.deadline;
  rank_options.close_world = !options.disorderly;
  rank_options.hosts = hosts;  // The number of ranks on each fake host.
  if (options.dies >= 0) {
    rank_options.strikes = {
        {.child = options.dies, .point = "die", .signal = SIGKILL}};
  }
  Marks connected;
  const auto report = test::run_ranks(
      ranks,
      [&](World world, test::Rank& self) {
        std::vector<int> all(static_cast<std::size_t>(ranks));
        std::iota(all.begin(), all.end(), 0);
        Seat seat;
        seat.rank = world.rank();
        seat.ranks = ranks;
        seat.exchange = make(world, all);
        // No rank dies while others still connect. This does not use a barrier, because a death
        // interrupts ranks that have not left it yet.
        connected.meet(seat.rank, ranks);
        seat.meet = [&] { world.barrier(); };
        seat.die = [&] { self.reach("die"); };
        body(seat);
        self.report(seat.result);
        if (!options.disorderly) {
          world.barrier();
        }
      },
      rank_options);
  std::vector<std::string> results;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& end = report[rank];
    results.push_back(end.result);
    EXPECT_EQ(end.exit_code, rank == options.dies ? -1 : 0)
        << "rank " << rank << (end.timed_out ? " hung" : "") << ", signal "
        << end.signal << ":\n"
        << end.output;
    EXPECT_EQ(end.signal, rank == options.dies ? SIGKILL : 0);
  }
  return results;
}

}  // namespace sherd::exchange::contract
