// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <utility>
#include "bench/fault_metrics.h"
#include "bench/fault_tolerant_job.h"
#include "bench/faults_bench.h"
#include "bench/statistics.h"

namespace sherd::bench {
namespace {

// Steps before anything is timed, to warm up caches and allocators.
constexpr int kUntimedSteps = 6;

ContenderJob::Spec plain_setup(
    const FaultsConfig& config, const StepPrograms& programs) {
  std::vector<std::string> command = {
      programs.rank,
      "--contender",
      "sherd",
      "--exchange",
      config.exchange,
      "--replicate",
      std::to_string(config.shape.replicas)};
  const auto work = flags_of(workload_of(config));
  command.insert(command.end(), work.begin(), work.end());
  return {
      .name = "plain",
      .sherd = programs.sherd,
      .ranks = config.shape.replicas * config.shape.ranks,
      .command = command,
      .environment = contender_environment(programs.environment, "kept")};
}

class CostMeasurement {
 public:
  CostMeasurement(
      const FaultsConfig& config,
      const StepPrograms& programs,
      const SignalFd& signals)
      : shape_(config.shape),
        plain_(plain_setup(config, programs), signals),
        replicas_(config, programs, signals) {}

  // One run after the other: a waiting one must not be taken for one that hangs.
  void warm_up() {
    plain_.wait_until_ready(kReadyDeadline);
    plain_.run(kUntimedSteps, kBlockDeadline);
    take_steps(kUntimedSteps);
  }

  void run_round(CostResult& result) {
    const auto round = static_cast<std::uint64_t>(result.plain_ms.size());
    for (const auto index : order_of_round(2, round)) {
      // Makes one more step first, since the other run has filled the caches.
      if (index == 0) {
        auto step_ms =
            plain_.run(result.block_steps + 1, kBlockDeadline).step_ms;
        step_ms.erase(step_ms.begin());
        result.plain_ms.push_back(median(step_ms));
      } else {
        result.fault_tolerant_ms.push_back(
            median(take_steps(result.block_steps + 1)));
      }
    }
  }

  void end() {
    plain_.end(kEndDeadline);
    replicas_.end(kEndDeadline);
  }

 private:
  // The times in ms of all steps except the first.
  std::vector<double> take_steps(int steps) {
    const auto first = taken_ + 1;
    taken_ += steps;
    replicas_.open_until(taken_);
    replicas_.wait_until("step " + std::to_string(taken_), kBlockDeadline, [&] {
      return step_of_all(replicas_.logs(), shape_) >= taken_;
    });
    return step_times_ms(replicas_.logs(), first, taken_);
  }

  const JobShape shape_;
  ContenderJob plain_;
  FaultTolerantJob replicas_;
  std::int64_t taken_ = 0;
};

}  // namespace

CostResult measure_cost(
    const FaultsConfig& config,
    const StepPrograms& programs,
    const SignalFd& signals,
    const ProgressCallback& progress) {
  CostMeasurement measurement(config, programs, signals);
  progress("starting");
  measurement.warm_up();
  CostResult result;
  result.block_steps = config.block_steps;
  const double begin_s = monotonic_s();
  while (result.why_stopped.empty()) {
    measurement.run_round(result);
    result.seconds = monotonic_s() - begin_s;
    const auto cost = cost_of(result);
    const auto rounds = static_cast<int>(result.plain_ms.size());
    result.why_stopped =
        stop_reason({cost}, rounds, result.seconds, config.limits);
    progress(
        "round " + std::to_string(rounds) + ", ratio " +
        std::to_string(cost.median));
  }
  measurement.end();
  return result;
}

}  // namespace sherd::bench
