// SPDX-License-Identifier: Apache-2.0
//
// The contract suite over the fake: ranks are threads, messages come at once or
// late by what the seed says.
#include "exchange/collective_exchange.h"
#include "exchange/contract_fakes_testing.h"

namespace sherd::exchange::contract {
namespace {

std::vector<ExchangeUnderTest> fakes() {
  std::vector<ExchangeUnderTest> all;
  for (const int ranks : {2, 3, 4, 7}) {
    for (const std::uint64_t seed : {0U, 1U, 2U}) {
      FakeOptions fake;
      fake.seed = seed;
      fake.delay_max = std::chrono::microseconds(seed == 0 ? 0 : 300);
      all.push_back(
          {"Seed" + std::to_string(seed) + "On", ranks,
           [fake](int n, const RunOptions& options, const Body& body) {
             return run_in_threads(
                 [](test::FakeRank& self) {
                   return self.network.exchange(self.rank);
                 },
                 fake, n, options, body);
           }});
    }
  }
  return all;
}

SHERD_EXCHANGE_CONTRACT(Fake, testing::ValuesIn(fakes()));

// A group of one rank, which nothing can be wrong with.
std::vector<std::string> run_alone(
    int /*ranks*/, const RunOptions& /*options*/, const Body& body) {
  const auto world = World::single();
  Seat seat;
  seat.exchange = make_collective_exchange(
      world::make_c10d_transport(world, "gather", {0}),
      world::make_c10d_transport(world, "reduce", {0}));
  seat.meet = [] {};
  body(seat);
  return {seat.result};
}

const auto kAlone = testing::Values(ExchangeUnderTest{"Alone", 1, run_alone});
INSTANTIATE_TEST_SUITE_P(Solo, ExchangeUnshard, kAlone, name_of);
INSTANTIATE_TEST_SUITE_P(Solo, ExchangeReduce, kAlone, name_of);
INSTANTIATE_TEST_SUITE_P(Solo, ExchangeNumbers, kAlone, name_of);

}  // namespace
}  // namespace sherd::exchange::contract
