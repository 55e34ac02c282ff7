// SPDX-License-Identifier: Apache-2.0
//
// Records what the engine asks of its exchange while a small model trains, as a list of events such
// as "start 2", "wait 2", "drop 2", "reduce 2", "end".
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include "base/check.h"
#include "fsdp/fsdp_engine.h"
#include "support/fake_ranks.h"
#include "support/small_models.h"

namespace sherd::fsdp::testing {

using exchange::UnitId;
using Events = std::vector<std::string>;

inline std::string event(const std::string& what, UnitId unit) {
  return str(what, ' ', unit);
}

struct Recorded {
  Events all;
  Events unplanned;    // Starts outside the plan.
  Events in_backward;  // Starts that are marked as in backward.
};

// Forwards all calls and records them.
class RecordingExchange final : public exchange::Exchange {
 public:
  RecordingExchange(std::unique_ptr<Exchange> next, Recorded& recorded)
      : next_(std::move(next)), recorded_(recorded) {}

  Status open(const exchange::ModelSpec& model) override {
    return next_->open(model);
  }
  exchange::ShardMemory shard_memory(UnitId unit, int flat) override {
    return next_->shard_memory(unit, flat);
  }
  Status start_unshard(
      UnitId unit, const exchange::UnshardOptions& options) override {
    const auto start = event("start", unit);
    recorded_.all.push_back(start);
    if (!options.planned) {
      recorded_.unplanned.push_back(start);
    }
    if (options.in_backward) {
      recorded_.in_backward.push_back(start);
    }
    return next_->start_unshard(unit, options);
  }
  Result<std::vector<void*>> wait_for_unshard(UnitId unit) override {
    recorded_.all.push_back(event("wait", unit));
    return next_->wait_for_unshard(unit);
  }
  void reshard(UnitId unit) override {
    recorded_.all.push_back(event("drop", unit));
    next_->reshard(unit);
  }
  void synchronize() override { next_->synchronize(); }
  void begin_backward() override { next_->begin_backward(); }
  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    return next_->gradient_slot(unit);
  }
  Status start_reduce(
      UnitId unit, const exchange::ReduceOptions& options) override {
    recorded_.all.push_back(event("reduce", unit));
    return next_->start_reduce(unit, options);
  }
  Result<exchange::BackwardOutcome> end_backward(
      const exchange::BackwardEnd& end) override {
    recorded_.all.emplace_back("end");
    return next_->end_backward(end);
  }
  Status publish(std::uint64_t generation) override {
    return next_->publish(generation);
  }
  Status all_reduce(
      const at::Tensor& values, exchange::ScalarReduceOp op) override {
    return next_->all_reduce(values, op);
  }
  std::vector<UnitId> progress() override { return next_->progress(); }
  void close(const Status& reason) override { next_->close(reason); }
  const exchange::ExchangeCounters& counters() const override {
    return next_->counters();
  }

 private:
  std::unique_ptr<Exchange> next_;
  Recorded& recorded_;
};

// A Chain whose layers are the units 0, 1, ... and whose head is the root, the unit after them; two
// ranks over a FakeNetwork.
struct Training {
  int layers = 3;
  int steps = 3;
  std::int64_t width = 8;
  Strategy strategy = Strategy::kFullShard;
  int prefetch_visits = 1;
  FullyShardOptions model_options = {};  // Only those that define units.
  // Called before the model is sharded.
  std::function<void(test::Chain&)> prepare = [](test::Chain&) {};
  // The loss for a model, a batch and the number of the step.
  std::function<torch::Tensor(test::Chain&, torch::Tensor, int)> forward =
      [](test::Chain& model, const torch::Tensor& x, int) {
        return model->forward(x).sum();
      };
};

struct Trained {
  std::vector<Events> steps;        // Rank 0, from one publish to the next.
  std::vector<Events> unplanned;    // By step: starts outside the plan.
  std::vector<Events> in_backward;  // By step: starts marked as in backward.
  ShardReport report;               // Rank 0, at the end.
};

inline Trained train(const Training& training) {
  constexpr int kRanks = 2;
  Trained trained;
  test::run_fake_ranks(
      kRanks, {.seed = 5, .delay_max = std::chrono::microseconds(200)},
      [&](test::FakeRank& self) {
        Recorded recorded;
        test::Chain model(training.layers, training.width);
        training.prepare(model);
        FsdpEngine::Options options;
        options.rank = self.rank;
        options.ranks = kRanks;
        options.strategy = training.strategy;
        options.prefetch_visits = training.prefetch_visits;
        const auto engine = std::make_shared<FsdpEngine>(
            build_units(*model, kRanks, training.model_options),
            std::make_unique<RecordingExchange>(
                self.network.exchange(self.rank), recorded),
            options);
        engine->start();
        // Like an optimizer, which writes no frozen slice.
        const auto publish = engine->named_parameters().publish;
        for (int step = 0; step < training.steps; ++step) {
          recorded = {};
          const auto x = test::integer_rows(step, self.rank, training.width);
          training.forward(model, x, step).backward();
          publish();
          if (self.rank == 0) {
            trained.steps.push_back(recorded.all);
            trained.unplanned.push_back(recorded.unplanned);
            trained.in_backward.push_back(recorded.in_backward);
          }
        }
        if (self.rank == 0) {
          trained.report = engine->report();
        }
        self.barrier.arrive_and_wait();
      });
  return trained;
}

inline Events only(const Events& events, const std::string& what) {
  Events found;
  for (const auto& one : events) {
    if (one.rfind(what, 0) == 0) {
      found.push_back(one);
    }
  }
  return found;
}

}  // namespace sherd::fsdp::testing
