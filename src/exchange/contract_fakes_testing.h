// SPDX-License-Identifier: Apache-2.0
//
// Runs the contract suite with ranks that are threads of one process. Only for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "exchange/contract_testing.h"
#include "support/fake_ranks.h"

namespace sherd::exchange::contract {

// Thrown to leave the body of a rank that dies.
struct Died {};

inline std::vector<std::string> run_in_threads(
    const std::function<std::unique_ptr<Exchange>(test::FakeRank&)>& make,
    FakeOptions fake,
    int ranks,
    const RunOptions& options,
    const Body& body) {
  fake.deadline = options.deadline;
  std::vector<std::string> results(static_cast<std::size_t>(ranks));
  test::run_fake_ranks(ranks, fake, [&](test::FakeRank& self) {
    Seat seat;
    seat.rank = self.rank;
    seat.ranks = ranks;
    seat.exchange = make(self);
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
}

}  // namespace sherd::exchange::contract
