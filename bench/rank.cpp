// SPDX-License-Identifier: Apache-2.0
//
// sherd-bench-rank: one rank of the contenders "bound" and "sherd", in which `sherd bench` tells
// rank 0 what to do (contender_protocol.h) and rank 0 tells the others, or of "replica"
// (replica_rank.h).
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include <sherd/base/run_main.h>
#include <sherd/world/world.h>
#include <torch/torch.h>
#include "bench/contender_protocol.h"
#include "bench/replica_rank.h"
#include "bench/step_runner.h"
#include "bench/workload.h"

namespace sherd::bench {
namespace {

// Idle contenders wait until it is their turn; `sherd bench` has its own limit.
constexpr auto kIdleDeadline = std::chrono::hours(24 * 7);
// Enough batches that nothing is memorised; then they repeat.
constexpr int kBatches = 64;

// The rows of one rank's part of a step.
at::Tensor rows_of(const Workload& work, int step, const World& world) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(work.batch));
  std::iota(
      numbers.begin(), numbers.end(),
      (std::int64_t{step} * world.size() + world.rank()) * work.batch);
  return random_rows(numbers, work.sequence + 1);
}

// Minor page faults and milliseconds of processor time of this process.
std::array<double, 2> usage() {
  rusage used = {};
  ::getrusage(RUSAGE_SELF, &used);
  const auto ms = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 +
        static_cast<double>(time.tv_usec) * 1e-3;
  };
  return {
      static_cast<double>(used.ru_minflt),
      ms(used.ru_utime) + ms(used.ru_stime)};
}

class RankLoop {
 public:
  RankLoop(const World& world, const StepRunnerOptions& options)
      : world_(world), runner_(make_step_runner(world, options)) {
    const auto length = options.work.sequence;
    for (int step = 0; step < kBatches; ++step) {
      const auto bytes = rows_of(options.work, step, world);
      inputs_.push_back(bytes.narrow(1, 0, length).contiguous());
      targets_.push_back(bytes.narrow(1, 1, length).contiguous());
    }
  }

  void run() {
    const auto processes = world_.all_gather({static_cast<double>(::getpid())});
    ReadyReply ready{.torch_version = TORCH_VERSION, .processes = {}};
    for (const auto& process : processes) {
      ready.processes.push_back(static_cast<int>(process.front()));
    }
    answer(line_of(ready));
    while (const int steps = next_steps()) {
      answer(line_of(take(steps)));
    }
    runner_.close();
  }

 private:
  bool leads() const { return world_.rank() == 0; }

  void answer(const std::string& line) const {
    if (leads()) {
      std::printf("%s\n", line.c_str());
      std::fflush(stdout);
    }
  }

  int next_steps() const {
    double steps = 0;
    std::string line;
    if (leads() && std::getline(std::cin, line)) {
      const auto asked = parse_request(line);
      if (!asked) {
        throw Error("[bench] expected a command, found '" + line + "'");
      }
      steps = *asked;
    }
    return static_cast<int>(world_.all_gather({steps}).front().front());
  }

  StepsReply take(int steps) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> step_ms;
    std::vector<double> losses;
    world_.barrier();
    const auto used_before = usage();
    auto before = Clock::now();
    for (int i = 0; i < steps; ++i) {
      losses.push_back(
          runner_.step(inputs_[next_ % kBatches], targets_[next_ % kBatches]));
      ++next_;
      const auto now = Clock::now();
      step_ms.push_back(
          std::chrono::duration<double, std::milli>(now - before).count());
      before = now;
    }
    const auto used = usage();
    auto ran = over_ranks(step_ms, losses);
    for (const auto& one : world_.all_gather(
             {used[0] - used_before[0], used[1] - used_before[1]})) {
      ran.faults += static_cast<std::int64_t>(one[0]);
      ran.cpu_ms += one[1];
    }
    return ran;
  }

  // The slowest rank's time and the mean loss of each step.
  StepsReply over_ranks(
      const std::vector<double>& step_ms,
      const std::vector<double>& losses) const {
    StepsReply ran{
        .step_ms = std::vector<double>(step_ms.size()),
        .losses = std::vector<double>(losses.size())};
    for (const auto& one : world_.all_gather(step_ms)) {
      for (std::size_t i = 0; i < one.size(); ++i) {
        ran.step_ms[i] = std::max(ran.step_ms[i], one[i]);
      }
    }
    for (const auto& one : world_.all_gather(losses)) {
      for (std::size_t i = 0; i < one.size(); ++i) {
        ran.losses[i] += one[i] / world_.size();
      }
    }
    return ran;
  }

  const World& world_;
  StepRunner runner_;
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> targets_;
  std::size_t next_ = 0;
};

int rank_command(int argc, char** argv) {
  CLI::App app("One rank of a contender of `sherd bench`", "sherd-bench-rank");
  StepRunnerOptions options;
  app.add_option("--contender", options.contender)->required();
  app.add_option("--layers", options.work.layers)->required();
  app.add_option("--width", options.work.width)->required();
  app.add_option("--heads", options.work.heads)->required();
  app.add_option("--sequence", options.work.sequence)->required();
  app.add_option("--batch", options.work.batch)->required();
  app.add_option("--mode", options.mode);
  app.add_option("--strategy", options.strategy);
  app.add_option("--exchange", options.exchange);
  app.add_option("--replicate", options.replicate);
  app.add_option("--dtype", options.dtype);
  app.add_option("--budget-bytes", options.budget_bytes);
  app.add_option("--update", options.update);
  app.add_option("--barrier", options.barrier);
  app.add_option("--folder", options.folder);
  app.add_option("--gate", options.gate);
  app.add_option("--hash-every", options.hash_every);
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  if (options.contender == "replica") {
    train_as_replica(options);
    return 0;
  }
  auto world = World::from_environment({.deadline = kIdleDeadline});
  RankLoop(world, options).run();
  world.close();
  return 0;
}

}  // namespace
}  // namespace sherd::bench

int main(int argc, char** argv) {
  using namespace sherd::bench;
  return sherd::run_main(argc, argv, [&] { return rank_command(argc, argv); });
}
