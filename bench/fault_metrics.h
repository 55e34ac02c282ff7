// SPDX-License-Identifier: Apache-2.0
//
// The metrics of `sherd bench faults`, computed from the step logs (step_log.h) that ranks wrote
// around kills. A gap is the time between two consecutive steps committed by one process. Thread
// rule: pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include "bench/step_log.h"

namespace sherd::bench {

struct InjectedKill {
  enum class Target { kRank, kCoordinator };
  Target target = Target::kRank;
  int replica = 0;  // Or, together with `rank`, the rank that was killed.
  int rank = 0;
  double time_s = 0.0;
  double usual_s = 0.0;  // The time of a step just before.
};

struct JobShape {
  int replicas = 0;
  int ranks = 0;  // Per replica.
};

// The median time of a step, over all ranks and the steps that began and ended between the two
// times; nullopt if there were none.
std::optional<double> usual_step_s(
    const std::vector<StepLog>& logs, double from_s, double until_s);

// Whether every rank, in its last log, has computed this many steps since.
bool have_computed(
    const std::vector<StepLog>& logs,
    const JobShape& shape,
    double since_s,
    int steps);

// The last step that all ranks have made, in their last logs; 0 if none.
std::int64_t step_of_all(
    const std::vector<StepLog>& logs, const JobShape& shape);

// The times of the steps after `first` up to `last`: from when the last rank had made the previous
// step until the last rank had made this one. Steps that no rank has made are left out.
std::vector<double> step_times_ms(
    const std::vector<StepLog>& logs, std::int64_t first, std::int64_t last);

// When every rank of the killed replica had again made a step together with the others. Nullopt if
// that has not happened yet, or if no rank was killed.
std::optional<double> return_time_s(
    const std::vector<StepLog>& logs, const InjectedKill& kill, int ranks);

struct FaultMetrics {
  InjectedKill kill;
  double gap_s = 0.0;        // The longest gap of a survivor.
  double into_step_s = 0.0;  // How long the survivors' step had been running.
  // The time from the kill until its processes ran again, and until return_time_s().
  std::optional<double> restart_s{};
  std::optional<double> return_s{};
  // `throughput_while_returning` of docs/design/benchmarks.md. Nullopt if the replica was back within
  // a step.
  std::optional<double> throughput{};
  // Other replicas that were restarted meanwhile.
  int survivors_lost = 0;
};

// The metrics of one kill; `until_s` is a time before the next one.
FaultMetrics metrics_of(
    const std::vector<StepLog>& logs,
    const InjectedKill& kill,
    const JobShape& shape,
    double until_s);

// How many steps a replica computed and then discarded although it was not killed, counted in logs
// with an earlier step. Events after `until_s` belong to the end of the run and do not count.
int discarded_steps(
    const std::vector<StepLog>& logs,
    const std::vector<InjectedKill>& kills,
    double until_s);

// Compares the hashes that several replicas, or several processes of one, have logged for the same
// rank after the same step.
struct HashComparison {
  int compared = 0;
  int divergences = 0;  // Compared states whose hashes differ.
};
HashComparison compare_hashes(const std::vector<StepLog>& logs);

}  // namespace sherd::bench
