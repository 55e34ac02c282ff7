// SPDX-License-Identifier: Apache-2.0
//
// What `sherd bench faults` concludes from what ranks wrote down around kills. A
// gap lies between two steps that one life of a rank has made. Thread rule: pure
// functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include "bench/step_log.h"

namespace sherd::bench {

enum class KillTarget { kRank, kCoordinator };

struct InjectedKill {
  KillTarget target = KillTarget::kRank;
  int replica = 0;  // Of a rank.
  int rank = 0;
  double time_s = 0.0;
  double usual_s = 0.0;  // A step right before.
};

// How many of each there should be.
struct JobShape {
  int replicas = 0;
  int ranks = 0;  // Of a replica.
};

// Median over all ranks of the steps that began and ended between the two times;
// none: there were none.
std::optional<double> usual_step_s(
    const std::vector<StepLog>& logs, double from_s, double until_s);

// Whether every rank, in its last log, has computed as many steps since.
bool have_computed(
    const std::vector<StepLog>& logs,
    const JobShape& shape,
    double since_s,
    int steps);

// The last step that all ranks have made, in their last logs; 0: none.
std::int64_t step_of_all(
    const std::vector<StepLog>& logs, const JobShape& shape);

// Of the steps after `first` up to `last`, from when the last rank had made the one
// before until it had made it. Steps that nobody has made are left out.
std::vector<double> step_times_ms(
    const std::vector<StepLog>& logs, std::int64_t first, std::int64_t last);

// When every rank of the replica that was killed had made a step together with
// the others again. None: not yet, or none was killed.
std::optional<double> return_time_s(
    const std::vector<StepLog>& logs, const InjectedKill& kill, int ranks);

struct FaultMetrics {
  InjectedKill kill;
  double gap_s = 0.0;  // The longest of a survivor.
  // From the kill until its processes ran again, and until return_time_s().
  std::optional<double> restart_s{};
  std::optional<double> return_s{};
  // Steps of the survivors while it came back, from the start of its processes to
  // its return, beside what is usual: 1 is as fast. The longest gap is left out,
  // which has a bar of its own. None: it was back within a step.
  std::optional<double> throughput{};
  // Other replicas that were started anew meanwhile.
  int survivors_lost = 0;
};

// Of what happened before `until_s`, when the next kill was not yet.
FaultMetrics metrics_of(
    const std::vector<StepLog>& logs,
    const InjectedKill& kill,
    const JobShape& shape,
    double until_s);

// Steps of a replica that were computed and never made, though it was not killed:
// of logs that had made a step before. What comes after `until_s` is the end.
int discarded_steps(
    const std::vector<StepLog>& logs,
    const std::vector<InjectedKill>& kills,
    double until_s);

// States, of one rank after one step, of which several replicas or logs wrote
// down hashes.
struct HashComparison {
  int compared = 0;
  int divergences = 0;  // Of those, with hashes that differ.
};
HashComparison compare_hashes(const std::vector<StepLog>& logs);

}  // namespace sherd::bench
