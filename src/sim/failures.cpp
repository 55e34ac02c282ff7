// SPDX-License-Identifier: Apache-2.0
#include "sim/failures.h"

#include <algorithm>

namespace sherd::sim {

const std::vector<FailureCause>& failure_causes() {
  static const std::vector<FailureCause> kCauses = {
      {"HBM3 memory", 0.229, FailureKind::kProcess},
      {"PCIe", 0.180, FailureKind::kHost},
      {"NCCL timeout", 0.090, FailureKind::kHang},
      {"faulty GPU", 0.074, FailureKind::kProcess},
      {"software", 0.071, FailureKind::kProcess},
      {"host maintenance", 0.062, FailureKind::kHost},
      {"kernel", 0.058, FailureKind::kHost},
      {"reboot", 0.056, FailureKind::kHost},
      {"silent corruption", 0.055, FailureKind::kProcess},
      {"network", 0.053, FailureKind::kLink},
      {"other", 0.072, FailureKind::kProcess}};
  return kCauses;
}

Duration minutes(double count) { return seconds_of(count * 60); }

Duration seconds_of(double count) {
  constexpr double kMax = 2e9;
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(count, kMax)));
}

Duration leader_fan_out_of(const SimulationOptions& options) {
  // As measured by leader_load.
  constexpr Duration kRankMessage = std::chrono::microseconds(10);
  return options.gpus / options.replicas * kRankMessage;
}

double step_s_of(const SimulationOptions& options) {
  constexpr double kPublished = 20;  // The value of FT-HSDP for 98,304 GPUs.
  if (options.step_s) {
    return *options.step_s;
  }
  if (!options.stall_min || options.policy != FailurePolicy::kSherd) {
    return kPublished;
  }
  // A step of large replicas is longer, because deciding about it takes their leaders long.
  constexpr double kShort = 0.5;
  constexpr double kOverheads = 1.5;
  WorldTimes times;
  times.leader_fan_out = leader_fan_out_of(options);
  return std::max(kShort, kOverheads * seconds(step_overhead_of(times)));
}

double mtbf_min_of(const SimulationOptions& options) {
  constexpr double kMinutesPerDay = 1440;
  const double hosts =
      static_cast<double>(options.gpus) / options.gpus_per_host;
  return options.mtbf_min.value_or(
      kMinutesPerDay * 1000 / (options.failures_per_1000_host_days * hosts));
}

double mean_between_stragglers_s(const SimulationOptions& options) {
  const double hosts =
      static_cast<double>(options.gpus) / options.gpus_per_host;
  return kSecondsPerDay * 1000 /
      (options.stragglers_per_1000_host_days * hosts);
}

FailureSource::FailureSource(
    const SimulationOptions& options, std::uint64_t seed)
    : options_(options),
      times_(seed, "failure times"),
      victims_(seed, "failed replicas"),
      kinds_(seed, "kinds of failures") {}

Failure FailureSource::next() {
  const bool even = options_.arrivals == Arrivals::kEven;
  const double mtbf_s = mtbf_min_of(options_) * 60;
  const auto replicas = static_cast<std::uint64_t>(options_.replicas);
  Failure failure;
  if (!even) {
    at_s_ += times_.exponential(mtbf_s);
  }
  failure.at = seconds_of(at_s_);
  if (even) {
    at_s_ += mtbf_s;
  }
  failure.whole_job = happens(options_.whole_job_share, whole_job_due_);
  const auto first = even ? count_ % replicas : victims_.below(replicas);
  failure.replicas = {static_cast<int>(first)};
  if (!failure.whole_job &&
      happens(options_.two_replica_share, two_replicas_due_) && replicas > 1) {
    const auto step =
        even ? (replicas + 1) / 2 : 1 + victims_.below(replicas - 1);
    failure.replicas.push_back(static_cast<int>((first + step) % replicas));
  }
  failure.kind = kind();
  ++count_;
  return failure;
}

bool FailureSource::happens(double share, double& due) {
  if (options_.arrivals != Arrivals::kEven) {
    return kinds_.uniform() < share;
  }
  due += share;
  const bool now = due >= 1;
  due -= now ? 1 : 0;
  return now;
}

FailureKind FailureSource::kind() {
  double left = kinds_.uniform();
  for (const auto& cause : failure_causes()) {
    left -= cause.share;
    if (left < 0) {
      return cause.kind;
    }
  }
  return FailureKind::kProcess;
}

SparePool::SparePool(std::optional<int> spares, Duration repair)
    : endless_(!spares), repair_(repair) {
  for (int i = 0; i < spares.value_or(0); ++i) {
    free_at_.insert(Instant(0));
  }
}

Instant SparePool::replace(Instant failed_at) {
  if (endless_) {
    return failed_at;
  }
  free_at_.insert(failed_at + repair_);
  const auto first = free_at_.begin();
  const auto there = std::max(*first, failed_at);
  free_at_.erase(first);
  return there;
}

}  // namespace sherd::sim
