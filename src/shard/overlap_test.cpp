// SPDX-License-Identifier: Apache-2.0
//
// In which order the runtime asks its exchange for things: gathers before they
// are needed, reductions while backward goes on (T28, by event order).
#include <algorithm>
#include <gtest/gtest.h>
#include "shard/runtime.h"
#include "support/fake_ranks.h"
#include "support/small_models.h"

namespace sherd::shard {
namespace {

using exchange::UnitId;
using test::FakeRank;

constexpr int kLayers = 6;
constexpr std::int64_t kWidth = 8;
constexpr int kUnits = kLayers + 1;  // The head is the root's.

enum class What { kStart, kWait, kReduce, kEndBackward };

struct Event {
  What what;
  UnitId unit = -1;

  bool operator==(const Event&) const = default;
};

// Passes everything on and writes it down.
class Recorder final : public exchange::Exchange {
 public:
  Recorder(std::unique_ptr<Exchange> next, std::vector<Event>& events)
      : next_(std::move(next)), events_(events) {}

  Status open(const exchange::ModelSpec& model) override {
    return next_->open(model);
  }
  exchange::ShardMemory shard_memory(UnitId unit, int flat) override {
    return next_->shard_memory(unit, flat);
  }
  Status start_unshard(
      UnitId unit, const exchange::UnshardOptions& options) override {
    events_.push_back({What::kStart, unit});
    return next_->start_unshard(unit, options);
  }
  Result<std::vector<void*>> wait_for_unshard(UnitId unit) override {
    events_.push_back({What::kWait, unit});
    return next_->wait_for_unshard(unit);
  }
  void reshard(UnitId unit) override { next_->reshard(unit); }
  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    return next_->gradient_slot(unit);
  }
  Status start_reduce(
      UnitId unit, const exchange::ReduceOptions& options) override {
    events_.push_back({What::kReduce, unit});
    return next_->start_reduce(unit, options);
  }
  Result<exchange::BackwardOutcome> end_backward(
      const exchange::BackwardEnd& end) override {
    events_.push_back({What::kEndBackward});
    return next_->end_backward(end);
  }
  Status publish(std::uint64_t generation) override {
    return next_->publish(generation);
  }
  Status all_reduce(const at::Tensor& values, exchange::ReduceOp op) override {
    return next_->all_reduce(values, op);
  }
  void progress() override { next_->progress(); }
  void close(const Status& reason) override { next_->close(reason); }
  const exchange::ExchangeCounters& counters() const override {
    return next_->counters();
  }

 private:
  std::unique_ptr<Exchange> next_;
  std::vector<Event>& events_;
};

// Of rank 0, by step.
std::vector<std::vector<Event>> events_of_training(int steps) {
  constexpr int kRanks = 2;
  std::vector<std::vector<Event>> by_step;
  test::run_fake_ranks(
      kRanks, {.seed = 5, .delay_max = std::chrono::microseconds(200)},
      [&](FakeRank& self) {
        std::vector<Event> events;
        test::Chain model(kLayers, kWidth);
        RuntimeOptions options;
        options.rank = self.rank;
        options.ranks = kRanks;
        const auto engine = std::make_shared<Runtime>(
            build_units(*model, units::children_of_lists(), kRanks, nullptr),
            std::make_unique<Recorder>(
                self.network.exchange(self.rank), events),
            options);
        engine->start();
        for (int step = 0; step < steps; ++step) {
          events.clear();
          model->forward(test::integer_rows(step, self.rank, kWidth))
              .sum()
              .backward();
          if (self.rank == 0) {
            by_step.push_back(events);
          }
          engine->publish();
        }
        self.barrier.arrive_and_wait();
      });
  return by_step;
}

std::ptrdiff_t position(
    const std::vector<Event>& events, const Event& event, int occurrence) {
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i] == event && occurrence-- == 0) {
      return static_cast<std::ptrdiff_t>(i);
    }
  }
  return -1;
}

std::vector<UnitId> starts_of(const std::vector<Event>& events) {
  std::vector<UnitId> units;
  for (const auto& event : events) {
    if (event.what == What::kStart) {
      units.push_back(event.unit);
    }
  }
  return units;
}

TEST(Overlap, T28FromTheSecondStepOnGathersStartBeforeTheOneBeforeIsWaitedFor) {
  const auto steps = events_of_training(4);
  for (std::size_t step = 1; step < steps.size(); ++step) {
    const auto units = starts_of(steps[step]);
    std::vector<int> seen(kUnits, 0);
    ASSERT_GT(units.size(), std::size_t{kUnits});  // Some twice.
    // Of the forward; later some units are whole still, and no gather waits.
    for (std::size_t i = 0; i + 1 < kUnits; ++i) {
      auto& times = seen[static_cast<std::size_t>(units[i])];
      const auto waited =
          position(steps[step], {What::kWait, units[i]}, times++);
      const auto next = position(
          steps[step], {What::kStart, units[i + 1]},
          seen[static_cast<std::size_t>(units[i + 1])]);
      EXPECT_GE(waited, 0);
      EXPECT_LT(next, waited) << "gather " << i + 1 << " of step " << step;
    }
  }
}

TEST(Overlap, T28TheFirstStepKnowsNothingAndGathersOneByOne) {
  const auto events = events_of_training(1).at(0);
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    if (events[i].what == What::kStart) {
      EXPECT_EQ(events[i + 1], (Event{What::kWait, events[i].unit}));
    }
  }
}

TEST(Overlap, T28ReductionsStartWhileBackwardStillGathers) {
  for (const auto& events : events_of_training(3)) {
    const auto first_reduce = std::find_if(
        events.begin(), events.end(),
        [](const Event& event) { return event.what == What::kReduce; });
    const auto end =
        std::find(events.begin(), events.end(), Event{What::kEndBackward});
    ASSERT_NE(end, events.end());
    EXPECT_TRUE(std::any_of(first_reduce, end, [](const Event& event) {
      return event.what == What::kWait;
    }));
    // All have started by then, and none after it.
    EXPECT_EQ(
        std::count_if(
            events.begin(), end,
            [](const Event& event) { return event.what == What::kReduce; }),
        kUnits);
    EXPECT_EQ(
        std::count_if(
            end, events.end(),
            [](const Event& event) { return event.what == What::kReduce; }),
        0);
  }
}

}  // namespace
}  // namespace sherd::shard
