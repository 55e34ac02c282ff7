// SPDX-License-Identifier: Apache-2.0
//
// What a gather sends, counted at the transport: never more than its precision, or its coder, says (T20,
// B28).
#include <array>
#include <atomic>
#include <functional>
#include <stdexcept>
#include <gtest/gtest.h>
#include "base/check.h"
#include "exchange/coded_shards.h"
#include "exchange/collective_exchange.h"
#include "exchange/contract_fakes_testing.h"
#include "exchange/observed_transport_testing.h"

namespace sherd::exchange::contract {
namespace {

// Sends patterns, which are small integers, as int16.
std::shared_ptr<ShardCoder> int16_coder() {
  auto coder = std::make_shared<ShardCoder>();
  coder->name = "int16";
  coder->bytes = [](std::int64_t numel, c10::ScalarType) { return 2 * numel; };
  coder->encode = [](const CodedShard&, const at::Tensor& shard,
                     c10::ScalarType, const at::Tensor& coded) {
    coded.view(at::kShort).copy_(shard);
  };
  coder->decode = [](const CodedShard&, const at::Tensor& coded,
                     const at::Tensor& part) {
    part.copy_(coded.view(at::kShort));
  };
  return coder;
}

constexpr int kRanks = 3;
using SentBytes = std::array<std::int64_t, kRanks>;
using CoderOfRank = std::function<std::shared_ptr<ShardCoder>(int rank)>;

void with_coder(
    const CoderOfRank& coder_of,
    SentBytes& sent,
    const RunOptions& options,
    const Body& body) {
  run_in_threads(
      [&](test::FakeRank& self) {
        return make_collective_exchange(
            std::make_shared<ObservedTransport>(
                self.network.transport(self.rank, "gather"),
                TransportObserver{
                    .on_send =
                        [&mine = sent[static_cast<std::size_t>(self.rank)]](
                            const ObservedMessage& message) {
                          mine += message.is_shard() ? message.bytes : 0;
                        }}),
            self.network.transport(self.rank, "reduce"),
            [coder = coder_of(self.rank)](
                const auto& model, const auto& gather,
                const auto& reduce) -> Result<std::unique_ptr<UnitTransport>> {
              return make_message_unit_transport(
                  model, gather, reduce, {.coder = coder});
            });
      },
      {.seed = 1, .delay_max = std::chrono::microseconds(200)}, kRanks, options,
      body);
}

ModelSpec coded_model(bool coded) {
  auto model = mixed_model(kRanks);
  for (auto& unit : model.units) {
    for (auto& flat : unit.flats) {
      flat.coded = coded;
    }
  }
  return model;
}

void gather_and_drop(
    Exchange& exchange, UnitId unit, const UnshardOptions& options = {}) {
  exchange.start_unshard(unit, options).throw_if_failed();
  exchange.wait_for_unshard(unit).status().throw_if_failed();
  exchange.reshard(unit);
}

TEST(GatherBytes, AreThoseOfThePrecisionOrOfTheCoder) {
  for (const bool coded : {false, true}) {
    for (const auto precision : {Precision::kParameter, Precision::kFull}) {
      SCOPED_TRACE(
          str("coded ", coded, ", full ", precision == Precision::kFull));
      SentBytes sent{};
      const auto body = [&](Seat& seat) {
        const auto model = coded_model(coded);
        open(seat, model);
        write_shards(*seat.exchange, model, seat.rank, 1);
        const auto& mine = sent[static_cast<std::size_t>(seat.rank)];
        for (UnitId unit = 0; unit < static_cast<UnitId>(model.units.size());
             ++unit) {
          const auto before = mine;
          gather_and_drop(*seat.exchange, unit, {.precision = precision});
          std::int64_t expected = 0;
          for (const auto& flat : model.unit(unit).flats) {
            const auto dtype = precision == Precision::kFull
                ? flat.shard_dtype()
                : flat.unsharded_dtype();
            const auto element_bytes =
                coded && precision == Precision::kParameter
                ? 2
                : static_cast<std::int64_t>(c10::elementSize(dtype));
            expected += flat.layout.shard(seat.rank).numel() * element_bytes *
                (kRanks - 1);
          }
          EXPECT_EQ(mine - before, expected) << "unit " << unit;
        }
        EXPECT_EQ(seat.exchange->counters().gather_sent_bytes, mine);
      };
      with_coder(
          [&](int) { return coded ? int16_coder() : nullptr; }, sent, {}, body);
    }
  }
}

TEST(GatherBytes, CodedShardsAreWhatArrivesOnEveryRank) {
  SentBytes sent{};
  with_coder(
      [](int) { return int16_coder(); }, sent, {},
      [](Seat& seat) {
        const auto model = coded_model(true);
        open(seat, model);
        for (const int salt : {1, 2}) {
          write_shards(*seat.exchange, model, seat.rank, salt);
          seat.exchange->publish(static_cast<std::uint64_t>(salt))
              .throw_if_failed();
          for (const UnitId unit : {0, 1, 0}) {
            expect_whole(*seat.exchange, model, unit, salt);
          }
        }
      });
}

// An empty shard needs no coder, and one of which nothing is sent does.
TEST(GatherBytes, ACoderThatSendsNothingIsCalledForEachShardWithElements) {
  SentBytes sent{};
  std::array<std::atomic<int>, kRanks> calls{};
  const auto coder_of = [&](int rank) {
    auto& count = calls[static_cast<std::size_t>(rank)];
    auto coder = std::make_shared<ShardCoder>();
    coder->name = "nothing";
    coder->bytes = [](std::int64_t, c10::ScalarType) -> std::int64_t {
      return 0;
    };
    coder->encode = [&count](
                        const CodedShard&, const at::Tensor&, c10::ScalarType,
                        const at::Tensor&) { count.fetch_add(1); };
    coder->decode =
        [&count](const CodedShard&, const at::Tensor&, const at::Tensor& part) {
          part.zero_();
          count.fetch_add(1);
        };
    return coder;
  };
  with_coder(coder_of, sent, {}, [&](Seat& seat) {
    const auto model = coded_model(true);
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 1);
    int expected = 0;
    for (UnitId unit = 0; unit < static_cast<UnitId>(model.units.size());
         ++unit) {
      gather_and_drop(*seat.exchange, unit);
      for (const auto& flat : model.unit(unit).flats) {
        expected += flat.layout.shard(seat.rank).numel() > 0 ? 1 : 0;
        for (int owner = 0; owner < kRanks; ++owner) {
          expected += flat.layout.shard(owner).numel() > 0 ? 1 : 0;
        }
      }
    }
    EXPECT_EQ(calls[static_cast<std::size_t>(seat.rank)].load(), expected);
  });
  EXPECT_EQ(sent, SentBytes{});
}

TEST(GatherBytes, ACoderThatFailsOnOneRankEndsTheExchangeOfAllRanks) {
  constexpr int kFails = 1;
  const auto coder_of = [](int rank) {
    auto coder = int16_coder();
    if (rank == kFails) {
      coder->decode = [](const CodedShard&, const at::Tensor&,
                         const at::Tensor&) {
        throw std::runtime_error("the coder's own trouble");
      };
    }
    return coder;
  };
  SentBytes sent{};
  const auto body = [](Seat& seat) {
    const auto model = coded_model(true);
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 1);
    // A rank that had all shards before it heard of it hears of it in the next gather.
    std::string error;
    int gathers = 0;
    for (; gathers < 2 && error.empty(); ++gathers) {
      try {
        gather_and_drop(*seat.exchange, 0);
      } catch (const Error& found) {
        error = found.what();
      }
    }
    for (const char* part : {"the coder's own trouble", "unit u0"}) {
      EXPECT_NE(error.find(part), std::string::npos) << error;
    }
    if (seat.rank == kFails) {
      EXPECT_EQ(gathers, 1);
    } else {
      EXPECT_NE(error.find("rank 1 gave up"), std::string::npos) << error;
    }
  };
  with_coder(coder_of, sent, {.disorderly = true}, body);
}

}  // namespace
}  // namespace sherd::exchange::contract
