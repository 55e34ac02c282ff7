// SPDX-License-Identifier: Apache-2.0
//
// Measures what an operator costs more because a parameter announces its use: the boxed fallback
// and a listener that does nothing, without any unit moving. Each operator runs on a plain weight,
// on a managed one, and on a plain weight while another one is managed, which must cost nothing.
//
//   t           reads no bytes, so it is redispatched without a call of the listener
//   mm, add     one managed argument
//   layer_norm  two managed arguments
//   linear      made of other operators, which are not announced again
//
// One thread, tensors of 16 x 16. Run with --benchmark_repetitions=9
// --benchmark_report_aggregates_only to get figures for comparison.
#include <functional>
#include <memory>
#include <vector>
#include <benchmark/benchmark.h>
#include <torch/torch.h>
#include "autograd/managed_storage.h"
#include "autograd/param_key.h"

namespace sherd::autograd {
namespace {

constexpr std::int64_t kWidth = 16;

class Ignore final : public ParameterUseListener {
 public:
  void begin_use(
      std::span<const ParameterUse> /*uses*/,
      const char* /*operator_name*/) override {}
  void end_use(std::span<const ParameterUse> /*uses*/) noexcept override {}
};

// A weight [16, 16] and a vector [16] that may lie in one managed storage.
struct Weights {
  torch::Tensor matrix = torch::randn({kWidth, kWidth});
  torch::Tensor vector = torch::randn({kWidth});

  // The storage's bytes stay as long as this object lives.
  void manage() {
    install_param_key();
    constexpr std::int64_t kNumel = kWidth * kWidth + kWidth;
    bytes_ = torch::randn({kNumel});
    storage_ = std::make_unique<ManagedStorage>(
        &listener_, 0, 0, kNumel * 4, c10::kCPU);
    adopt(matrix, *storage_, 0, torch::kFloat);
    adopt(vector, *storage_, kWidth * kWidth, torch::kFloat);
    storage_->fill(bytes_.data_ptr());
  }

 private:
  Ignore listener_;
  torch::Tensor bytes_;
  std::unique_ptr<ManagedStorage> storage_;
};

using Operator =
    std::function<torch::Tensor(const torch::Tensor&, const Weights&)>;

void measure(
    benchmark::State& state, const Operator& call, const Weights& weights) {
  torch::set_num_threads(1);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({kWidth, kWidth});
  for (auto _ : state) {
    benchmark::DoNotOptimize(call(x, weights));
  }
}

void plain(benchmark::State& state, const Operator& call) {
  measure(state, call, Weights());
}

void managed(benchmark::State& state, const Operator& call) {
  Weights weights;
  weights.manage();
  measure(state, call, weights);
}

void beside_managed(benchmark::State& state, const Operator& call) {
  Weights other;
  other.manage();
  measure(state, call, Weights());
}

struct Row {
  const char* name;
  Operator call;
};

std::vector<Row> rows() {
  return {
      {"t", [](const auto&, const auto& w) { return w.matrix.t(); }},
      {"mm", [](const auto& x, const auto& w) { return x.mm(w.matrix); }},
      {"add", [](const auto& x, const auto& w) { return x.add(w.matrix); }},
      {"layer_norm",
       [](const auto& x, const auto& w) {
         return torch::layer_norm(x, {kWidth}, w.vector, w.vector);
       }},
      {"linear",
       [](const auto& x, const auto& w) {
         return torch::linear(x, w.matrix, w.vector);
       }},
  };
}

}  // namespace
}  // namespace sherd::autograd

int main(int argc, char** argv) {
  using namespace sherd::autograd;  // NOLINT: this file's own names.
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  for (const auto& row : rows()) {
    const std::string name = row.name;
    benchmark::RegisterBenchmark((name + "/plain").c_str(), plain, row.call);
    benchmark::RegisterBenchmark(
        (name + "/beside_managed").c_str(), beside_managed, row.call);
    benchmark::RegisterBenchmark(
        (name + "/managed").c_str(), managed, row.call);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
