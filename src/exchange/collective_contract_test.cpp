// SPDX-License-Identifier: Apache-2.0
//
// The contract suite over Gloo: ranks are processes, and die by SIGKILL.
#include "exchange/contract_processes_testing.h"

#include "exchange/make_exchange.h"
#include "support/fake_ranks.h"

namespace sherd::exchange::contract {
namespace {

std::vector<std::string> run_on_gloo(
    int ranks, const RunOptions& options, const Body& body) {
  return run_in_processes(
      [](const World& world, const std::vector<int>& all) {
        return make_exchange(world, "contract", all);
      },
      ranks, options, body);
}

std::vector<ExchangeUnderTest> gloos() {
  std::vector<ExchangeUnderTest> all;
  for (const int ranks : {2, 3, 4, 7}) {
    all.push_back({"On", ranks, run_on_gloo});
  }
  return all;
}

SHERD_EXCHANGE_CONTRACT(Gloo, testing::ValuesIn(gloos()));

// Some of everything, from sums that depend on their order.
std::string bytes_of_a_step(Seat& seat) {
  const auto model = mixed_model(seat.ranks);
  open(seat, model);
  write_shards(*seat.exchange, model, seat.rank, 1);
  expect_whole(*seat.exchange, model, 1, 1);
  for (const UnitId unit : {5, 3, 2, 1, 0}) {
    fill_gradients(*seat.exchange, model, unit, seat.rank, noise);
    const auto& spec = model.unit(unit);
    seat.exchange->start_reduce(unit, reduce_options(spec, 1.0 / seat.ranks))
        .throw_if_failed();
  }
  seat.exchange->end_backward(backward_end(model)).status().throw_if_failed();
  std::string bytes;
  const auto add = [&](const at::Tensor& tensor) {
    bytes.append(
        static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  };
  auto norm = at::full(
      {1}, 0.1 * seat.rank, at::TensorOptions().dtype(c10::ScalarType::Double));
  seat.exchange->all_reduce(norm, ScalarReduceOp::kSum).throw_if_failed();
  add(norm);
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
      if (model.units[u].flats[f].trainable) {
        add(seat.exchange
                ->shard_memory(static_cast<UnitId>(u), static_cast<int>(f))
                .gradient);
      }
    }
  }
  return bytes;
}

TEST(GlooBesideFake, GivesTheSameBits) {
  for (const int ranks : {2, 3, 4}) {
    const auto gloo = run_on_gloo(
        ranks, {}, [](Seat& seat) { seat.result = bytes_of_a_step(seat); });
    FakeOptions delayed;
    delayed.seed = 11;
    delayed.delay_max = std::chrono::microseconds(200);
    test::run_fake_ranks(ranks, delayed, [&](test::FakeRank& self) {
      Seat seat;
      seat.rank = self.rank;
      seat.ranks = ranks;
      seat.exchange = self.network.exchange(self.rank);
      const auto bytes = bytes_of_a_step(seat);
      EXPECT_EQ(bytes, gloo[static_cast<std::size_t>(self.rank)]);
      EXPECT_FALSE(bytes.empty());
      self.barrier.arrive_and_wait();
    });
  }
}

}  // namespace
}  // namespace sherd::exchange::contract
