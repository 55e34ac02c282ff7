// SPDX-License-Identifier: Apache-2.0
//
// The contract suite over the fake: ranks are threads, messages come at once or
// late by what the seed says.
#include "exchange/collective_exchange.h"
#include "exchange/contract.h"
#include "exchange/solo_link.h"
#include "support/fake_ranks.h"

namespace sherd::exchange::contract {
namespace {

using test::FakeRank;
using test::run_fake_ranks;

// Leaves the body of a rank that dies.
struct Died {};

std::vector<std::string> run_on_fake(
    FakeOptions fake, int ranks, const RunOptions& options, const Body& body) {
  fake.deadline = options.deadline;
  std::vector<std::string> results(static_cast<std::size_t>(ranks));
  run_fake_ranks(ranks, fake, [&](FakeRank& self) {
    Seat seat;
    seat.rank = self.rank;
    seat.ranks = ranks;
    seat.exchange = self.network.exchange(self.rank);
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

std::vector<Contender> fakes() {
  std::vector<Contender> all;
  for (const int ranks : {2, 3, 4, 7}) {
    for (const std::uint64_t seed : {0U, 1U, 2U}) {
      FakeOptions fake;
      fake.seed = seed;
      fake.delay_max = std::chrono::microseconds(seed == 0 ? 0 : 300);
      all.push_back(
          {"Seed" + std::to_string(seed) + "On", ranks,
           [fake](int n, const RunOptions& options, const Body& body) {
             return run_on_fake(fake, n, options, body);
           }});
    }
  }
  return all;
}

SHERD_EXCHANGE_CONTRACT(Fake, testing::ValuesIn(fakes()));

// A group of one rank, which nothing can be wrong with.
std::vector<std::string> run_alone(
    int /*ranks*/, const RunOptions& /*options*/, const Body& body) {
  Seat seat;
  seat.exchange =
      make_collective_exchange(make_solo_link(0), make_solo_link(0));
  seat.meet = [] {};
  body(seat);
  return {seat.result};
}

const auto kAlone = testing::Values(Contender{"Alone", 1, run_alone});
INSTANTIATE_TEST_SUITE_P(Solo, ExchangeUnshard, kAlone, name_of);
INSTANTIATE_TEST_SUITE_P(Solo, ExchangeReduce, kAlone, name_of);
INSTANTIATE_TEST_SUITE_P(Solo, ExchangeNumbers, kAlone, name_of);

}  // namespace
}  // namespace sherd::exchange::contract
