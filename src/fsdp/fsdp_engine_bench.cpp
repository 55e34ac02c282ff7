// SPDX-License-Identifier: Apache-2.0
//
// The engine's own time on the host, the bar being 20 us a unit visit. One
// thread, one rank over the fake exchange, twelve units of 16 x 16 weights, so
// that bytes cost next to nothing. Compare each row with its plain one.
//
//   visits/plain      an operator on a plain weight
//   visits/resident   every operator visits another unit; all stay whole
//   visits/gathered   the same with room for two units: each visit drops one
//                     and gathers another
//   steps/plain       forward and backward of twelve layers
//   steps/resident    the same sharded, with the reductions and a publish
//   steps/gathered    that with room for two units
//
// "visit" is the time divided by the visits of an iteration: 12 of a forward,
// for a step another 12 of its backward.
#include <memory>
#include <optional>
#include <vector>
#include <benchmark/benchmark.h>
#include <torch/torch.h>
#include "exchange/fake_transport_testing.h"
#include "fsdp/fsdp_engine.h"

namespace sherd::fsdp {
namespace {

constexpr int kUnits = 12;
constexpr std::int64_t kWidth = 16;

struct ChainImpl : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  ChainImpl() {
    for (int i = 0; i < kUnits; ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i),
          torch::nn::Linear(
              torch::nn::LinearOptions(kWidth, kWidth).bias(false))));
    }
  }
};
TORCH_MODULE(Chain);

// A chain of layers, sharded by a rank that is alone, or plain.
class Subject {
 public:
  // Plain without a strategy.
  explicit Subject(std::optional<Strategy> strategy) {
    torch::set_num_threads(1);
    if (!strategy) {
      return;
    }
    FsdpEngine::Options options;
    options.strategy = *strategy;
    engine_ = std::make_shared<FsdpEngine>(
        build_units(*chain_, 1, {.units = units::by_name("*")}),
        network_.exchange(0), options);
    engine_->start();
  }

  // One operator a unit.
  void visit_all(const torch::Tensor& x) {
    for (const auto& layer : chain_->layers) {
      benchmark::DoNotOptimize(torch::mm(x, layer->weight));
    }
  }

  void step(const torch::Tensor& x) {
    auto y = x;
    for (const auto& layer : chain_->layers) {
      y = torch::mm(y, layer->weight);
    }
    y.sum().backward();
    if (engine_ == nullptr) {
      chain_->zero_grad();
      return;
    }
    for (const auto& item : engine_->named_parameters().items) {
      item.slice.mutable_grad().reset();
    }
    engine_->publish();
  }

 private:
  exchange::FakeNetwork network_{1, exchange::FakeOptions{}};
  Chain chain_;
  std::shared_ptr<FsdpEngine> engine_;  // Null: plain.
};

void count_visits(benchmark::State& state, int visits) {
  state.counters["visit"] = benchmark::Counter(
      visits,
      benchmark::Counter::kIsIterationInvariantRate |
          benchmark::Counter::kInvert);
}

void visits(benchmark::State& state, std::optional<Strategy> strategy) {
  Subject subject(strategy);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({kWidth, kWidth});
  for (auto _ : state) {
    subject.visit_all(x);
  }
  count_visits(state, kUnits);
}

void steps(benchmark::State& state, std::optional<Strategy> strategy) {
  Subject subject(strategy);
  const auto x = torch::randn({kWidth, kWidth});
  for (auto _ : state) {
    subject.step(x);
  }
  count_visits(state, 2 * kUnits);
}

BENCHMARK_CAPTURE(visits, plain, std::nullopt);
BENCHMARK_CAPTURE(visits, resident, Strategy::kShardGradOp);
BENCHMARK_CAPTURE(visits, gathered, Strategy::kFullShard);
BENCHMARK_CAPTURE(steps, plain, std::nullopt);
BENCHMARK_CAPTURE(steps, resident, Strategy::kShardGradOp);
BENCHMARK_CAPTURE(steps, gathered, Strategy::kFullShard);

}  // namespace
}  // namespace sherd::fsdp

BENCHMARK_MAIN();
