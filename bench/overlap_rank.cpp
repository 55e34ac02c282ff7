// SPDX-License-Identifier: Apache-2.0
//
// sherd-bench-overlap: how much of an exchange of known length a backward of replicas hides. A hook
// that only waits, in proportion to each bucket's bytes, simulates a network that needs no
// processor. For waits that are fractions of a plain backward's time, rank 0 prints how long a
// backward took relative to the longer of two times: the backward without a wait, and the exchange
// alone, which is the wait plus the time for passing buckets on.
//
//   sherd run -n 2 --no-prefix -- sherd-bench-overlap
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>
#include <CLI/CLI.hpp>
#include <sherd/base/run_main.h>
#include <sherd/ddp/replicate.h>
#include <sherd/world/world.h>
#include <torch/torch.h>
#include "bench/report_text.h"
#include "bench/step_runner.h"

namespace sherd::bench {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin)
      .count();
}

// Set between backwards only.
class DelayHook final : public CommHook {
 public:
  std::string name() const override { return "wait"; }
  void reduce(GradientBucket& bucket, HookGroup& /*group*/) override {
    const auto bytes = static_cast<double>(bucket.gradients.nbytes());
    std::this_thread::sleep_until(
        Clock::now() +
        std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double, std::milli>(bytes * ms_per_byte)));
  }

  double ms_per_byte = 0;
};

struct RankFlags {
  std::string work = "wide";
  int rounds = 21;
  int steps = 3;  // In each block, after one step that is not counted.
  // Relative to a backward.
  std::vector<double> waits = {0.5, 0.9, 1.0, 1.1, 2.0};
};

class InterleavedRun {
 public:
  InterleavedRun(const World& world, const RankFlags& flags)
      : world_(world),
        work_(workload_named(flags.work)),
        steps_(flags.steps),
        model_(model_config(work_)),
        wait_(std::make_shared<DelayHook>()),
        ddp_(replicate(*model_, world, {.hook = wait_})),
        bytes_(gradient_bytes()) {}

  // The median of a block's backwards on the slower rank, in ms.
  double block(double wait_ms) {
    wait_->ms_per_byte = wait_ms / bytes_;
    std::vector<double> times;
    for (int step = 0; step <= steps_; ++step) {
      const auto inputs =
          torch::randint(kVocabulary, {work_.batch, work_.sequence});
      const auto loss = model_->loss(inputs, inputs);
      world_.barrier();
      const auto begin = Clock::now();
      loss.backward();
      times.push_back(ms_since(begin));
    }
    times.erase(times.begin());
    double slowest = 0;
    for (const auto& one : world_.all_gather({median(times)})) {
      slowest = std::max(slowest, one[0]);
    }
    return slowest;
  }

 private:
  double gradient_bytes() const {
    double bytes = 0;
    for (const auto& parameter : model_->parameters()) {
      bytes += static_cast<double>(parameter.nbytes());
    }
    return bytes;
  }

  const World& world_;
  const Workload work_;
  const int steps_;
  models::Gpt model_;
  std::shared_ptr<DelayHook> wait_;
  DistributedDataParallel ddp_;
  const double bytes_;
};

// Longer than any backward, so that what remains is the exchange's own time.
constexpr double kLongWait = 4.0;

// By contender: one for each wait, then the long wait, then no wait.
using Times = std::vector<std::vector<double>>;

Times run(
    InterleavedRun& measurement, const RankFlags& flags, double backward_ms) {
  Times times(flags.waits.size() + 2);
  for (int round = 0; round < flags.rounds; ++round) {
    for (const auto i :
         order_of_round(times.size(), static_cast<std::uint64_t>(round))) {
      double part = i < flags.waits.size() ? flags.waits[i] : 0.0;
      part = i == flags.waits.size() ? kLongWait : part;
      times[i].push_back(measurement.block(part * backward_ms));
    }
  }
  return times;
}

void measure(const World& world, const RankFlags& flags) {
  InterleavedRun measurement(world, flags);
  measurement.block(0);
  const double backward_ms = measurement.block(0);
  const auto times = run(measurement, flags, backward_ms);
  if (world.rank() != 0) {
    return;
  }
  const auto& plain = times.back();
  const double own_ms =
      median(times[flags.waits.size()]) - kLongWait * backward_ms;
  std::printf(
      "%s, %d ranks: backward %.0f ms; the exchange itself %.0f ms\n"
      "exchange   backward with it   time / max(backward, exchange)\n",
      flags.work.c_str(), world.size(), median(plain), own_ms);
  for (std::size_t i = 0; i < flags.waits.size(); ++i) {
    const double exchange_ms = flags.waits[i] * backward_ms + own_ms;
    std::vector<double> longer;
    for (const double one : plain) {
      longer.push_back(std::max(one, exchange_ms));
    }
    std::printf(
        "%5.0f ms   %5.0f ms           %s\n", exchange_ms, median(times[i]),
        median_text(ratios(times[i], longer)).c_str());
  }
}

int overlap_command(int argc, char** argv) {
  CLI::App app(
      "How much of a slow exchange backward hides", "sherd-bench-overlap");
  RankFlags flags;
  app.add_option("--work", flags.work, "wide, small or tiny");
  app.add_option("--rounds", flags.rounds)->check(CLI::PositiveNumber);
  app.add_option("--steps", flags.steps, "Of each block")
      ->check(CLI::PositiveNumber);
  app.add_option("--waits", flags.waits, "In backwards")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  auto world = World::from_environment();
  measure(world, flags);
  world.close();
  return 0;
}

}  // namespace
}  // namespace sherd::bench

int main(int argc, char** argv) {
  using namespace sherd::bench;
  return sherd::run_main(
      argc, argv, [&] { return overlap_command(argc, argv); });
}
