// SPDX-License-Identifier: Apache-2.0
//
// The failures of a simulated cluster, one after the other, and the hosts that replace failed ones.
// Both depend only on the options and the seed, so that all policies meet the same failures. Thread
// rule: values.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <vector>
#include "base/clock.h"
#include "sim/random.h"
#include "sim/simulate.h"
#include "sim/world.h"

namespace sherd::sim {

struct FailureCause {
  std::string_view name;
  double share = 0;
  FailureKind kind = FailureKind::kProcess;
};
// What interrupts training; the shares add up to 1.
const std::vector<FailureCause>& failure_causes();

struct Failure {
  Instant at{};
  bool whole_job = false;
  std::vector<int> replicas;  // The replicas that it affects.
  FailureKind kind = FailureKind::kProcess;
};

inline constexpr double kSecondsPerDay = 86400;

// Converts a time that a user has given, limited to sixty years so that sums do not overflow.
Duration minutes(double count);
Duration seconds_of(double count);

// The time that one message to or from each rank of its replica takes a leader.
Duration leader_fan_out_of(const SimulationOptions& options);

class FailureSource {
 public:
  FailureSource(const SimulationOptions& options, std::uint64_t seed);
  // The first failure comes at once if failures come evenly, otherwise at a random time.
  Failure next();

 private:
  FailureKind kind();
  // Whether this failure is one of that share: at random or, if failures come evenly, as soon as the
  // shares that are `due` add up to one.
  bool happens(double share, double& due);

  const SimulationOptions options_;
  Random times_;
  Random victims_;
  Random kinds_;
  double at_s_ = 0;
  std::uint64_t count_ = 0;
  // How much of the two shares is due, if failures come evenly.
  double whole_job_due_ = 0;
  double two_replicas_due_ = 0;
};

class SparePool {
 public:
  // Nullopt means that there is always a spare.
  SparePool(std::optional<int> spares, Duration repair);
  // A host has failed and will be repaired. Returns when another one is available for it. REQUIRES:
  // times do not go back.
  Instant replace(Instant failed_at);

 private:
  const bool endless_;
  const Duration repair_;
  std::multiset<Instant> free_at_;
};

}  // namespace sherd::sim
