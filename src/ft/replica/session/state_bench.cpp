// SPDX-License-Identifier: Apache-2.0
//
// The cost of reading a whole state, for a replica that starts (its digest) or that gives its state
// to another one (its bytes and their digests), for several sizes of the state. Results are bytes
// per second of processor time.
#include <benchmark/benchmark.h>
#include <torch/torch.h>
#include "base/digest.h"
#include "ft/replica/session/state_bytes.h"

namespace sherd::ft {
namespace {

constexpr std::int64_t kTensorBytes = std::int64_t{64} << 20U;

CheckpointState state_of(std::int64_t gibibytes) {
  CheckpointState state;
  const auto count = (gibibytes << 30U) / kTensorBytes;
  const std::int64_t elements = kTensorBytes / 4;
  for (std::int64_t i = 0; i < count; ++i) {
    state.add(
        "model",
        {.name = std::to_string(i),
         .shape = {elements},
         .elements = torch::full({elements}, static_cast<double>(i))});
  }
  return state;
}

void set_bytes(benchmark::State& run) {
  run.SetBytesProcessed(
      static_cast<std::int64_t>(run.iterations()) * (run.range(0) << 30U));
}

void digest(benchmark::State& run) {
  const auto state = state_of(run.range(0));
  for (auto iteration : run) {
    benchmark::DoNotOptimize(state_digest(state, 0));
  }
  set_bytes(run);
}
BENCHMARK(digest)->Arg(1)->Arg(4)->Unit(benchmark::kMillisecond);

void bytes(benchmark::State& run) {
  const auto state = state_of(run.range(0));
  for (auto iteration : run) {
    benchmark::DoNotOptimize(state_bytes(state, 0));
  }
  set_bytes(run);
}
BENCHMARK(bytes)->Arg(1)->Unit(benchmark::kMillisecond);

void digests_of_bytes(benchmark::State& run) {
  const std::string all = state_bytes(state_of(run.range(0)), 0);
  for (auto iteration : run) {
    benchmark::DoNotOptimize(digests_of_chunks(all, 1U << 20U));
  }
  set_bytes(run);
}
BENCHMARK(digests_of_bytes)->Arg(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sherd::ft

BENCHMARK_MAIN();
