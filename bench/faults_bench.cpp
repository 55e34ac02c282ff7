// SPDX-License-Identifier: Apache-2.0
#include "bench/faults_bench.h"

#include <algorithm>
#include <chrono>
#include <random>
#include "bench/fault_tolerant_job.h"
#include "bench/statistics.h"
#include "format_text.h"
#include "sim/gap.h"

namespace sherd::bench {
namespace {

using Target = InjectedKill::Target;
using std::chrono::seconds;

// A busy machine may take this long.
constexpr seconds kStartDeadline(300);
// The launcher waits for up to a minute before it restarts a replica.
constexpr seconds kReturnDeadline(300);
constexpr seconds kStepsDeadline(300);
// Every rank warms up with the first steps; the next ones show what is usual.
constexpr int kWarmUpSteps = 3;
constexpr int kUsualSteps = 10;
// The number of steps without faults between two kills.
constexpr int kQuietSteps = 6;

std::vector<Target> targets_of(const FaultsConfig& config) {
  std::vector<Target> targets;
  for (int i = 0; i < config.kills; ++i) {
    if (config.target != "coordinator") {
      targets.push_back(Target::kRank);
    }
    if (config.target != "rank") {
      targets.push_back(Target::kCoordinator);
    }
  }
  return targets;
}

Duration duration_of(double length_s) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(length_s));
}

// Each kill is simulated with the steps just before it, since a machine's speed varies.
std::vector<double> simulated_gaps_s(
    const FaultsConfig& config, const FaultsResult& result) {
  std::vector<double> gaps;
  for (const auto& fault : result.faults) {
    if (fault.kill.target == Target::kRank && config.shape.replicas > 1) {
      sim::WorldTimes times;
      times.step = duration_of(fault.kill.usual_s);
      const auto into_step =
          duration_of(std::min(fault.into_step_s, fault.kill.usual_s));
      gaps.push_back(sherd::seconds(sim::gap_of_loss(
          config.shape.replicas, config.shape.ranks, times, into_step)));
    }
  }
  return gaps;
}

std::string sentence_of(const FaultMetrics& fault) {
  return fault.kill.target == Target::kCoordinator
      ? tools::format("the coordinator: gap %.2f s", fault.gap_s)
      : tools::format(
            "replica %d, rank %d: gap %.2f s, back in %.1f s",
            fault.kill.replica, fault.kill.rank, fault.gap_s,
            fault.return_s.value_or(0.0));
}

// One run with kills.
class FaultsRun {
 public:
  FaultsRun(
      const FaultsConfig& config,
      const StepPrograms& programs,
      const SignalFd& signals,
      const ProgressCallback& progress)
      : config_(config),
        progress_(progress),
        shape_(config.shape),
        contender_(config, programs, signals),
        random_(config.seed) {}

  FaultsResult run() {
    const double begin_s = monotonic_s();
    progress_("starting");
    wait_for_steps(0.0, kWarmUpSteps, kStartDeadline);
    quiet_since_s_ = monotonic_s();
    wait_for_steps(quiet_since_s_, kUsualSteps, kStepsDeadline);
    std::vector<double> usual;
    const auto targets = targets_of(config_);
    FaultsResult result;
    std::vector<InjectedKill> kills;
    for (const auto target : targets) {
      usual.push_back(usual_s());
      const auto kill = inject(target, usual.back());
      kills.push_back(kill);
      recover(kill);
      result.faults.push_back(
          metrics_of(contender_.logs(), kill, shape_, monotonic_s()));
      progress_(
          std::to_string(kills.size()) + " of " +
          std::to_string(targets.size()) + ", " +
          sentence_of(result.faults.back()));
    }
    usual.push_back(usual_s());
    const double end_s = monotonic_s();
    contender_.end(kEndDeadline);
    const auto& logs = contender_.logs();
    result.step_s = median(usual);
    result.simulated_gaps_s = simulated_gaps_s(config_, result);
    result.discarded_steps = discarded_steps(logs, kills, end_s);
    result.hashes = compare_hashes(logs);
    result.steps = step_of_all(logs, shape_);
    result.seconds = end_s - begin_s;
    return result;
  }

 private:
  void wait_for_steps(double since_s, int steps, seconds deadline) {
    contender_.wait_until(
        std::to_string(steps) + " steps of every rank", deadline, [&] {
          return have_computed(contender_.logs(), shape_, since_s, steps);
        });
  }

  // Since the last fault.
  double usual_s() const {
    return usual_step_s(contender_.logs(), quiet_since_s_, monotonic_s())
        .value_or(0.0);
  }

  // Kills at a random time within a step.
  InjectedKill inject(Target target, double usual_s) {
    InjectedKill kill{.target = target, .usual_s = usual_s};
    kill.replica = static_cast<int>(
        random_() % static_cast<std::uint64_t>(shape_.replicas));
    kill.rank =
        static_cast<int>(random_() % static_cast<std::uint64_t>(shape_.ranks));
    constexpr int kParts = 1000;
    contender_.pause(
        usual_s * static_cast<double>(random_() % kParts) / kParts);
    kill.time_s = target == Target::kRank
        ? contender_.kill_rank(kill.replica, kill.rank)
        : contender_.kill_coordinator();
    return kill;
  }

  void recover(const InjectedKill& kill) {
    if (kill.target == Target::kRank) {
      contender_.wait_until(
          "replica " + std::to_string(kill.replica) + " to come back",
          kReturnDeadline, [&] {
            return return_time_s(contender_.logs(), kill, shape_.ranks)
                .has_value();
          });
    } else {
      // One step may have been decided before; the next one needs the replica back.
      wait_for_steps(kill.time_s, 2, kReturnDeadline);
    }
    quiet_since_s_ = monotonic_s();
    wait_for_steps(quiet_since_s_, kQuietSteps, kStepsDeadline);
  }

  const FaultsConfig& config_;
  const ProgressCallback& progress_;
  const JobShape shape_;
  FaultTolerantJob contender_;
  std::mt19937_64 random_;
  double quiet_since_s_ = 0.0;
};

}  // namespace

FaultsResult measure_faults(
    const FaultsConfig& config,
    const StepPrograms& programs,
    const SignalFd& signals,
    const ProgressCallback& progress) {
  return FaultsRun(config, programs, signals, progress).run();
}

}  // namespace sherd::bench
