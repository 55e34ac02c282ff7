// SPDX-License-Identifier: Apache-2.0
//
// What a HybridExchange asks of its two axes, and when: what the contract suite
// cannot see.
#include "exchange/hybrid_exchange.h"

#include <algorithm>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/clock.h"
#include "exchange/contract_testing.h"
#include "support/fake_ranks.h"

namespace sherd::exchange {
namespace {

using contract::backward_end;
using contract::fill_gradients;
using contract::plain_model;
using contract::reduce_options;
using test::FakeRank;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

using Events = std::vector<std::string>;

// Writes down what is reduced and when that ends; passes everything on.
class Axis final : public Exchange {
 public:
  Axis(std::string name, std::unique_ptr<Exchange> next, Events& events)
      : name_(std::move(name)), next_(std::move(next)), events_(events) {}

  Status open(const ModelSpec& model) override { return next_->open(model); }
  ShardMemory shard_memory(UnitId unit, int flat) override {
    return next_->shard_memory(unit, flat);
  }
  Status start_unshard(UnitId unit, const UnshardOptions& options) override {
    note("unshard");
    return next_->start_unshard(unit, options);
  }
  Result<std::vector<void*>> wait_for_unshard(UnitId unit) override {
    return next_->wait_for_unshard(unit);
  }
  void reshard(UnitId unit) override { next_->reshard(unit); }
  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    return next_->gradient_slot(unit);
  }
  Status start_reduce(UnitId unit, const ReduceOptions& options) override {
    note(str("reduce ", unit));
    return next_->start_reduce(unit, options);
  }
  Result<BackwardOutcome> end_backward(const BackwardEnd& end) override {
    note("end");
    return next_->end_backward(end);
  }
  Status publish(std::uint64_t generation) override {
    return next_->publish(generation);
  }
  Status all_reduce(const at::Tensor& values, ScalarReduceOp op) override {
    note("all-reduce");
    return next_->all_reduce(values, op);
  }
  std::vector<UnitId> progress() override { return next_->progress(); }
  void close(const Status& reason) override { next_->close(reason); }
  const ExchangeCounters& counters() const override {
    return next_->counters();
  }

 private:
  void note(const std::string& what) { events_.push_back(name_ + " " + what); }

  const std::string name_;
  const std::unique_ptr<Exchange> next_;
  Events& events_;
};

// One of four ranks, in two replicas.
struct Hybrid {
  Events events;
  Exchange* within = nullptr;
  Exchange* across = nullptr;
  std::unique_ptr<Exchange> both;

  explicit Hybrid(FakeRank& self) {
    const int first = self.rank / 2 * 2;
    const int shard = self.rank % 2;
    auto one = std::make_unique<Axis>(
        "within",
        self.network.exchange(self.rank, "within", {first, first + 1}), events);
    auto other = std::make_unique<Axis>(
        "across",
        self.network.exchange(self.rank, "across", {shard, shard + 2}), events);
    within = one.get();
    across = other.get();
    both = make_hybrid_exchange(
        std::move(one), std::move(other),
        {.shard_index = shard, .replicas = 2});
    both->open(plain_model(2)).throw_if_failed();
    events.clear();
  }
};

void run_hybrid(const std::function<void(FakeRank&, Hybrid&)>& body) {
  test::run_fake_ranks(
      4, {.seed = 3, .delay_max = std::chrono::microseconds(200)},
      [&](FakeRank& self) {
        Hybrid hybrid(self);
        body(self, hybrid);
        self.barrier.arrive_and_wait();
      });
}

void reduce(
    Exchange& exchange,
    int rank,
    UnitId unit,
    const std::function<void(ReduceOptions&)>& change = nullptr) {
  const auto model = plain_model(2);
  fill_gradients(exchange, model, unit, rank);
  auto options = reduce_options(model.unit(unit));
  if (change) {
    change(options);
  }
  exchange.start_reduce(unit, options).throw_if_failed();
}

// Until the event is there, which nothing but progress() may take.
void progress_until(
    Exchange& exchange, const Events& events, const std::string& event) {
  const SteadyClock clock;
  const Instant limit = clock.now() + std::chrono::seconds(20);
  while (std::find(events.begin(), events.end(), event) == events.end()) {
    ASSERT_LT(clock.now(), limit) << "expected " << event;
    (void)exchange.progress();
  }
}

TEST(HybridExchange, T10A43AUnitIsSummedAcrossBeforeTheNextOneIsWithin) {
  run_hybrid([](FakeRank& self, Hybrid& hybrid) {
    auto& exchange = *hybrid.both;
    const auto& events = hybrid.events;
    for (const UnitId unit : {2, 1, 0}) {
      reduce(exchange, self.rank, unit);
      progress_until(exchange, events, str("across reduce ", unit));
    }
    exchange.end_backward(backward_end(plain_model(2)))
        .status()
        .throw_if_failed();
    EXPECT_THAT(
        events,
        ElementsAre(
            "within reduce 2", "across reduce 2", "within reduce 1",
            "across reduce 1", "within reduce 0", "across reduce 0",
            "within end", "across end"));
  });
}

TEST(HybridExchange, T10B12APartialReductionStaysWithinItsReplica) {
  run_hybrid([](FakeRank& self, Hybrid& hybrid) {
    auto& exchange = *hybrid.both;
    const auto& events = hybrid.events;
    const auto model = plain_model(2);
    for (const UnitId unit : {2, 1, 0}) {
      reduce(exchange, self.rank, unit, [](auto& options) {
        options.partial = true;
      });
    }
    const auto outcome = exchange.end_backward(backward_end(model));
    EXPECT_THAT(outcome.value().used[1], ElementsAre(false));
    EXPECT_THAT(
        events,
        ElementsAre(
            "within reduce 2", "within reduce 1", "within reduce 0",
            "within end", "across end"));
    // The next whole one has both.
    for (const UnitId unit : {2, 1, 0}) {
      reduce(exchange, self.rank, unit);
    }
    const auto next = exchange.end_backward(backward_end(model));
    EXPECT_THAT(next.value().used[1], ElementsAre(true));
    auto sum = torch::zeros_like(contract::pattern(model, 1, 0, 0));
    for (int rank = 0; rank < 4; ++rank) {
      sum.add_(contract::pattern(model, 1, 0, rank), 2);
    }
    contract::expect_gradient(exchange, model, 1, 0, self.rank, sum);
  });
}

// In place, until sums are to be added to others.
TEST(HybridExchange, T10OneBufferIsEnoughUntilGradientsAddUp) {
  run_hybrid([](FakeRank& self, Hybrid& hybrid) {
    const auto model = plain_model(2);
    const auto own_bytes = [&] {
      return hybrid.both->counters().gradient_bytes -
          hybrid.within->counters().gradient_bytes -
          hybrid.across->counters().gradient_bytes;
    };
    std::int64_t shard_bytes = 0;
    for (const UnitId unit : {2, 1, 0}) {
      shard_bytes += static_cast<std::int64_t>(
          hybrid.both->shard_memory(unit, 0).gradient.nbytes());
    }
    for (const bool accumulate : {false, true, true}) {
      for (const UnitId unit : {2, 1, 0}) {
        reduce(*hybrid.both, self.rank, unit, [&](auto& options) {
          options.accumulate = {accumulate};
        });
      }
      hybrid.both->end_backward(backward_end(model)).status().throw_if_failed();
      EXPECT_EQ(own_bytes() >= shard_bytes, accumulate);
      EXPECT_EQ(own_bytes() == 0, !accumulate);
    }
  });
}

TEST(HybridExchange, T10OwnersAreThoseOfOneReplica) {
  run_hybrid([](FakeRank& self, Hybrid& hybrid) {
    auto& exchange = *hybrid.both;
    const auto& events = hybrid.events;
    auto values = torch::full({1}, self.rank % 2 + 1.0, torch::kDouble);
    exchange.all_reduce(values, ScalarReduceOp::kSumOverOwners)
        .throw_if_failed();
    EXPECT_EQ(values.item<double>(), 3.0);
    EXPECT_THAT(events, ElementsAre("within all-reduce"));
    exchange.all_reduce(values, ScalarReduceOp::kSum).throw_if_failed();
    EXPECT_EQ(values.item<double>(), 12.0);
  });
}

TEST(HybridExchange, T10GathersStayWithinAReplica) {
  run_hybrid([](FakeRank& self, Hybrid& hybrid) {
    auto& exchange = *hybrid.both;
    const auto& events = hybrid.events;
    const auto model = plain_model(2);
    contract::write_shards(exchange, model, self.rank, 1);
    contract::expect_whole(exchange, model, self.rank / 2, 1);
    EXPECT_THAT(events, Contains("within unshard"));
    EXPECT_THAT(events, Not(Contains("across unshard")));
  });
}

}  // namespace
}  // namespace sherd::exchange
