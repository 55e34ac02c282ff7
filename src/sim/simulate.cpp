// SPDX-License-Identifier: Apache-2.0
#include "sim/simulate.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "ft/protocol/identity.h"
#include "ft/wire/codec.h"
#include "sim/runs.h"

namespace sherd::sim {
namespace {

static_assert(kReplicaGpusMax == ft::CodecLimits::kAddresses);

void check_positive(double value, const char* what) {
  SHERD_CHECK(
      std::isfinite(value) && value > 0, "[sim] expected ", what,
      " above 0, found ", value);
}

void check_not_negative(double value, const char* what) {
  SHERD_CHECK(
      std::isfinite(value) && value >= 0, "[sim] expected ", what,
      " of 0 or more, found ", value);
}

void check_share(double value, const char* what) {
  SHERD_CHECK(
      value >= 0 && value <= 1, "[sim] expected ", what, " from 0 to 1, found ",
      value);
}

void check_cluster(const SimulationOptions& options) {
  constexpr std::int64_t kGpusMax = 10'000'000;
  constexpr auto kReplicasMax = static_cast<int>(ft::kReplicasMax);
  SHERD_CHECK(
      options.replicas >= 1 && options.replicas <= kReplicasMax,
      "[sim] expected 1 to ", kReplicasMax, " replicas, found ",
      options.replicas);
  SHERD_CHECK(
      options.gpus >= 1 && options.gpus <= kGpusMax &&
          options.gpus % options.replicas == 0,
      "[sim] expected a number of GPUs, at most ", kGpusMax, ", that the ",
      options.replicas, " replicas divide, found ", options.gpus);
  SHERD_CHECK(
      options.policy != FailurePolicy::kSherd ||
          options.gpus / options.replicas <= kReplicaGpusMax,
      "[sim] expected replicas of at most ", kReplicaGpusMax,
      " GPUs, found ones of ", options.gpus / options.replicas);
  SHERD_CHECK(
      options.gpus_per_host >= 1,
      "[sim] expected at least one GPU in a host, found ",
      options.gpus_per_host);
  SHERD_CHECK(
      options.replicas_min >= 1 && options.replicas_min <= options.replicas,
      "[sim] expected a minimum from 1 to ", options.replicas,
      " replicas, found ", options.replicas_min);
  SHERD_CHECK(
      !options.spares || (*options.spares >= 0 && *options.spares <= kGpusMax),
      "[sim] expected 0 to ", kGpusMax, " spares, found ",
      options.spares.value_or(0));
}

void check(const SimulationOptions& options) {
  check_cluster(options);
  constexpr double kStepMin_s = 0.001;
  SHERD_CHECK(
      std::isfinite(step_s_of(options)) && step_s_of(options) >= kStepMin_s,
      "[sim] expected a step of at least ", kStepMin_s, " s, found ",
      step_s_of(options));
  check_positive(options.days, "a number of days");
  SHERD_CHECK(
      !options.steps || *options.steps > 0,
      "[sim] expected a number of steps above 0, found ",
      options.steps.value_or(0));
  check_positive(
      options.mtbf_min.value_or(1), "a time between failures, in minutes,");
  check_positive(
      options.failures_per_1000_host_days, "a rate of failures of hosts");
  check_share(options.whole_job_share, "a share of failures of the whole job");
  check_share(options.two_replica_share, "a share of failures of two replicas");
  check_not_negative(
      options.stragglers_per_1000_host_days,
      "a rate of hosts that become slow");
  SHERD_CHECK(
      std::isfinite(options.straggler_factor) && options.straggler_factor >= 1,
      "[sim] expected a step with a slow host to take 1 time as long or more, "
      "and not for ever, found ",
      options.straggler_factor);
  check_positive(options.straggler_min, "how long a host is slow, in minutes,");
  check_not_negative(options.stall_min.value_or(0), "a stall, in minutes,");
  check_not_negative(options.down_min, "a time away, in minutes,");
  check_not_negative(options.rejoin_min, "a stall at a return, in minutes,");
  check_not_negative(options.restart_min, "a restart, in minutes,");
  check_not_negative(
      options.checkpoint_min, "a time between checkpoints, in minutes,");
  check_positive(options.repair_h, "a repair, in hours,");
  check_not_negative(options.link_down_min, "a dead link, in minutes,");
  check_not_negative(
      options.coordinator_mtbf_h,
      "a time between failures of the coordinator, in hours,");
  check_not_negative(
      options.coordinator_down_s, "the coordinator's absence, in seconds,");
  SHERD_CHECK(
      options.restarts_max >= 0, "[sim] expected 0 restarts or more, found ",
      options.restarts_max);
  check_not_negative(
      options.restart_window_s, "a window of restarts, in seconds,");
  check_positive(options.gradient_mb, "megabytes of gradients");
  check_positive(options.link_gbit_per_s, "a link's gigabits a second");
  constexpr int kRunsMax = 100'000;
  SHERD_CHECK(
      options.runs >= 1 && options.runs <= kRunsMax, "[sim] expected 1 to ",
      kRunsMax, " runs, found ", options.runs);
}

void check_at_most(double count, double max, const char* what) {
  SHERD_CHECK(
      count <= max, "[sim] expected at most ", max, " ", what, ", found ",
      count);
}

// An option that would take hours to simulate is a mistake.
void check_limits(const SimulationOptions& options) {
  const auto length_s = seconds(length_of(options));
  constexpr double kNever = std::numeric_limits<double>::infinity();
  check_at_most(length_s / kSecondsPerDay, kDaysMax, "days");
  check_at_most(
      length_s / step_s_of(options), 1e10, "steps in the simulated time");
  check_at_most(
      length_s / 60 / mtbf_min_of(options), 1e8,
      "failures in the simulated time");
  const double checkpoint_s =
      options.checkpoint_min > 0 ? options.checkpoint_min * 60 : kNever;
  check_at_most(
      length_s / checkpoint_s, 1e7, "checkpoints in the simulated time");
  const double coordinator_s = options.coordinator_mtbf_h > 0
      ? options.coordinator_mtbf_h * 3600
      : kNever;
  check_at_most(
      length_s / coordinator_s, 1e6,
      "failures of the coordinator in the simulated time");
  const double straggler_s = options.stragglers_per_1000_host_days > 0
      ? mean_between_stragglers_s(options)
      : kNever;
  check_at_most(
      length_s / straggler_s, 1e6, "slow hosts in the simulated time");
}

RunOutcome run(const SimulationOptions& options, std::uint64_t seed) {
  switch (options.policy) {
    case FailurePolicy::kRestart:
      return run_restart(options, seed);
    case FailurePolicy::kTorchft:
      return run_torchft(options, seed);
    case FailurePolicy::kSherd:
      return run_sherd(options, seed);
  }
  throw Error("[sim] expected a policy, found none");
}

// Starts the runs in order, on as many threads as requested.
std::vector<RunOutcome> run_all(const SimulationOptions& options) {
  const int count = options.arrivals == Arrivals::kEven ? 1 : options.runs;
  std::vector<RunOutcome> outcomes(static_cast<std::size_t>(count));
  std::atomic<int> next{0};
  std::mutex mutex;
  std::exception_ptr failed;
  const auto work = [&] {
    // Relaxed: the threads are joined before anybody reads what they wrote.
    for (int i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      try {
        outcomes[static_cast<std::size_t>(i)] =
            run(options, options.seed + static_cast<std::uint64_t>(i));
      } catch (...) {
        const std::lock_guard lock(mutex);
        failed = std::current_exception();
      }
    }
  };
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads =
      std::clamp(options.threads > 0 ? options.threads : cores, 1, count);
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) {
      others.emplace_back(work);
    }
    work();
  }
  if (failed) {
    std::rethrow_exception(failed);
  }
  return outcomes;
}

// Student's t for a 95 % interval.
double student_t(int runs) {
  constexpr double kTable[] = {
      0,     0,     12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
      2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101,
      2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048};
  constexpr int kKnown = sizeof(kTable) / sizeof(kTable[0]);
  constexpr double kNormal = 1.96;
  return runs < kKnown ? kTable[runs] : kNormal + 2.5 / runs;
}

void add_interval(
    SimulationResult& result, const std::vector<RunOutcome>& outcomes) {
  double sum = 0;
  double squares = 0;
  result.lowest_run = 1;
  for (const auto& one : outcomes) {
    // The last step may end after the time that was asked for.
    const double effective = std::min(one.work_s / one.elapsed_s, 1.0);
    sum += effective;
    squares += effective * effective;
    result.lowest_run = std::min(result.lowest_run, effective);
    result.highest_run = std::max(result.highest_run, effective);
  }
  const auto count = static_cast<double>(outcomes.size());
  result.effective_training_time = sum / count;
  double half = 0;
  if (outcomes.size() > 1) {
    const double variance =
        std::max(squares - sum * sum / count, 0.0) / (count - 1);
    half = student_t(static_cast<int>(outcomes.size())) *
        std::sqrt(variance / count);
  }
  result.low = std::max(result.effective_training_time - half, 0.0);
  result.high = std::min(result.effective_training_time + half, 1.0);
}

}  // namespace

Duration length_of(const SimulationOptions& options) {
  return seconds_of(
      options.steps ? static_cast<double>(*options.steps) * step_s_of(options)
                    : options.days * kSecondsPerDay);
}

SimulationResult simulate(const SimulationOptions& options) {
  check(options);
  check_limits(options);
  const auto outcomes = run_all(options);
  SimulationResult result;
  result.policy = options.policy;
  const auto mean = [&](auto value) {
    double sum = 0;
    for (const auto& one : outcomes) {
      sum += static_cast<double>(one.*value);
    }
    return sum / static_cast<double>(outcomes.size());
  };
  const double elapsed_s = outcomes[0].elapsed_s;
  add_interval(result, outcomes);
  result.runs = static_cast<int>(outcomes.size());
  result.simulated_days = elapsed_s / kSecondsPerDay;
  result.failures = mean(&RunOutcome::failures);
  result.commits = mean(&RunOutcome::commits);
  result.discarded_steps = mean(&RunOutcome::discarded);
  result.epochs = mean(&RunOutcome::epochs);
  const double made = mean(&RunOutcome::steps_s);
  result.stall_share = std::clamp(1 - made / elapsed_s, 0.0, 1.0);
  result.degraded_share =
      std::clamp(made / elapsed_s - result.effective_training_time, 0.0, 1.0);
  result.too_few_share = mean(&RunOutcome::too_few_s) / elapsed_s;
  result.replicas_given_up = mean(&RunOutcome::given_up);
  add_traffic(options, outcomes[0], result);
  result.assumptions = assumptions_of(options);
  return result;
}

}  // namespace sherd::sim
