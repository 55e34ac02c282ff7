// SPDX-License-Identifier: Apache-2.0
//
// What an exchange leaves in a record of events, and shows PyTorch's profiler.
#include "exchange/recorded_exchange.h"

#include <mutex>
#include <set>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "exchange/collective_exchange.h"
#include "exchange/contract_testing.h"
#include "support/fake_ranks.h"

namespace sherd::exchange {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::StartsWith;

constexpr int kRecordedRanks = 2;
const SteadyClock kRecordedClock;

struct RecordedRank {
  explicit RecordedRank(test::FakeRank& self)
      : recorder(std::make_shared<FlightRecorder>(
            FlightOptions{.rank = self.rank, .world_size = kRecordedRanks},
            kRecordedClock)) {
    const FlightLog log(recorder, "fsdp/0", {0, 1});
    exchange = make_recorded_exchange(
        make_collective_exchange(
            self.network.transport(self.rank, "gather"),
            self.network.transport(self.rank, "reduce"), nullptr, log),
        log);
  }
  // "requested unshard in forward 0", in the order of time; without those that begin otherwise.
  std::vector<std::string> events(const std::set<std::string>& which) const {
    std::vector<std::string> texts;
    const auto json = nlohmann::json::parse(recorder->to_json());
    for (const auto& row : json["events"]) {
      if (which.contains(row.at(1).get<std::string>())) {
        const auto step = row.at(2).get<std::string>();
        texts.push_back(
            row.at(1).get<std::string>() + (step.empty() ? "" : " ") + step +
            " " + row.at(4).dump());
      }
    }
    return texts;
  }

  std::shared_ptr<FlightRecorder> recorder;
  std::unique_ptr<Exchange> exchange;
};

// A step of the first unit alone: gathered, reduced, published.
void take_step(Exchange& exchange, const ModelSpec& model) {
  exchange.open(model).throw_if_failed();
  const auto units = static_cast<UnitId>(model.units.size());
  for (UnitId unit = 0; unit < units; ++unit) {
    (void)exchange.shard_memory(unit, /*flat=*/0);
  }
  exchange.start_unshard(0, {}).throw_if_failed();
  (void)exchange.wait_for_unshard(0).value();
  exchange.reshard(0);
  ReduceOptions options;
  options.accumulate.assign(model.units[0].flats.size(), false);
  options.used.assign(trainable_parameters(model.units[0]), true);
  for (auto& slot : exchange.gradient_slot(0)) {
    if (slot.defined()) {
      slot.zero_();
    }
  }
  exchange.start_reduce(0, options).throw_if_failed();
  BackwardEnd end;
  end.late.assign(model.units.size(), false);
  (void)exchange.end_backward(end).value();
  exchange.publish(1).throw_if_failed();
}

TEST(RecordedExchange, WritesDownAStep) {
  test::run_fake_ranks(kRecordedRanks, {.seed = 3}, [](test::FakeRank& self) {
    const RecordedRank rank(self);
    const auto model = contract::plain_model(kRecordedRanks);
    take_step(*rank.exchange, model);
    EXPECT_THAT(
        rank.events(
            {"asked", "waiting", "resumed", "posted", "reduced",
             "backward ended", "published"}),
        ElementsAre(
            "asked unshard in forward 0", "waiting unshard in forward 0",
            "resumed unshard in forward 0", "posted 0",
            "waiting end the backward -1", "resumed end the backward -1",
            "reduced 0", "backward ended -1", "waiting publish -1",
            "resumed publish -1", "published -1"));
    EXPECT_THAT(
        rank.events({"started", "gathered", "requested", "agreed"}),
        ElementsAre(
            "started 0", "requested unshard in forward 0",
            "agreed unshard in forward 0", "gathered 0",
            "requested end the backward -1", "agreed end the backward -1",
            "requested publish -1"));
    const auto times = rank.exchange->log().unit_times();
    ASSERT_EQ(times.size(), model.units.size());
    EXPECT_EQ(times[0].gathers, 1);
    EXPECT_EQ(times[0].reduces, 1);
    EXPECT_GT(times[0].gathering, Duration(0));
    EXPECT_GT(times[0].reducing, Duration(0));
    EXPECT_EQ(times[1].gathers, 0);
    self.barrier.arrive_and_wait();
  });
}

TEST(RecordedExchange, TheFirstFailureIsItsReason) {
  test::run_fake_ranks(kRecordedRanks, {.seed = 4}, [](test::FakeRank& self) {
    const RecordedRank rank(self);
    const auto model = contract::plain_model(kRecordedRanks);
    take_step(*rank.exchange, model);
    self.barrier.arrive_and_wait();
    // One rank wants another unit than the other.
    EXPECT_TRUE(rank.exchange->start_unshard(self.rank, {}).ok());
    EXPECT_FALSE(rank.exchange->wait_for_unshard(self.rank).ok());
    rank.exchange->close({ErrorCode::kPeerLost, "said later"});
    const auto json = nlohmann::json::parse(rank.recorder->to_json());
    EXPECT_THAT(
        json["reason"].get<std::string>(),
        StartsWith("[exchange] ranks went different ways: rank 0 wants to "
                   "unshard unit"));
    // It still waits when that is written.
    const auto events = rank.events({"waiting", "resumed", "failed"});
    ASSERT_GE(events.size(), 3U);
    EXPECT_THAT(
        std::vector<std::string>(events.end() - 3, events.end()),
        ElementsAre(
            StartsWith("waiting unshard"), "failed -1",
            StartsWith("resumed unshard")));
    self.barrier.arrive_and_wait();
  });
}

TEST(RecordedExchange, AnExceptionThatEndsItIsAReason) {
  test::run_fake_ranks(1, {.seed = 5}, [](test::FakeRank& self) {
    std::shared_ptr<FlightRecorder> recorder;
    try {
      RecordedRank rank(self);
      recorder = rank.recorder;
      throw std::runtime_error("of the program");
    } catch (const std::runtime_error&) {
    }
    EXPECT_THAT(
        recorder->to_json(),
        ::testing::HasSubstr("\"reason\":\"ended by an exception\""));
  });
}

// Ranges that PyTorch's profiler would show, of all threads.
class SeenRanges {
 public:
  SeenRanges() {
    instance = this;
    handle_ =
        at::addGlobalCallback(at::RecordFunctionCallback(
                                  [](const at::RecordFunction& range)
                                      -> std::unique_ptr<at::ObserverContext> {
                                    const std::lock_guard lock(instance->mu_);
                                    instance->names_.insert(range.name());
                                    return nullptr;
                                  })
                                  .scopes({at::RecordScope::FUNCTION}));
  }
  ~SeenRanges() { at::removeCallback(handle_); }
  SeenRanges(const SeenRanges&) = delete;
  SeenRanges& operator=(const SeenRanges&) = delete;

  std::set<std::string> names() {
    const std::lock_guard lock(mu_);
    return names_;
  }

 private:
  static inline SeenRanges* instance = nullptr;
  std::mutex mu_;
  std::set<std::string> names_;
  at::CallbackHandle handle_ = 0;
};

TEST(RecordedExchange, TheProfilerOfPyTorchSeesUnits) {
  SeenRanges seen;
  std::string unit;
  test::run_fake_ranks(kRecordedRanks, {.seed = 6}, [&](test::FakeRank& self) {
    const RecordedRank rank(self);
    const auto model = contract::plain_model(kRecordedRanks);
    take_step(*rank.exchange, model);
    if (self.rank == 0) {
      unit = model.units[0].name;
    }
    self.barrier.arrive_and_wait();
  });
  const auto names = seen.names();
  for (const auto* what : {"start_unshard", "unshard", "gather", "reduce"}) {
    EXPECT_THAT(names, Contains(std::string("sherd::") + what + " " + unit));
  }
  EXPECT_THAT(names, Contains("sherd::end_backward"));
}

}  // namespace
}  // namespace sherd::exchange
