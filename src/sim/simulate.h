// SPDX-License-Identifier: Apache-2.0
//
// Simulates training on up to hundreds of thousands of GPUs that fail, to help size a cluster: how
// much of the time goes into training, under which policy and with how many spare hosts. Under
// sherd's policy the state machines are those of the running system; time, network, disk and
// failures are simulated. `sherd simulate` is this function; docs/guide/simulate.md,
// docs/design/simulate.md. Thread rule: a pure function, which uses several threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::sim {

// What a failure costs the replicas that did not fail.
enum class FailurePolicy {
  // All stop, and restart from a checkpoint.
  kRestart,
  // Like torchft: the current step is discarded and the others go on.
  kTorchft,
  // The current reduction is repeated with the gradients that are kept, and the others go on.
  kSherd,
};

enum class Arrivals {
  kEven,     // One failure after the other at equal distances, in turn.
  kPoisson,  // At random times, of random replicas.
};

// The longest time that can be simulated.
inline constexpr double kDaysMax = 20000;

// The largest replica under kSherd: its report has the addresses of so many ranks.
inline constexpr std::int64_t kReplicaGpusMax = 65536;

// Times in minutes are measured from a failure.
struct SimulationOptions {
  // ---- behaviour ----

  FailurePolicy policy = FailurePolicy::kSherd;
  std::int64_t gpus = 98304;
  int replicas = 12;  // Must divide gpus.
  int gpus_per_host = 8;
  // The time of a step without faults. Nullopt means step_s_of().
  std::optional<double> step_s;
  // How long training is simulated.
  double days = 30;
  // Replaces `days`: as long as this many steps take without faults.
  std::optional<std::int64_t> steps;

  Arrivals arrivals = Arrivals::kPoisson;
  // The mean time between two failures of the whole cluster. Nullopt: from the rate of hosts.
  std::optional<double> mtbf_min;
  double failures_per_1000_host_days = 6.5;
  // The share of failures that stop the whole job and, among the others, the share that affects two
  // replicas.
  double whole_job_share = 0;
  double two_replica_share = 0;
  // How many hosts become slow, by what factor the steps of their replicas then take longer, and
  // for how long. 0 means none.
  double stragglers_per_1000_host_days = 0;
  double straggler_factor = 1.5;
  double straggler_min = 60;

  // All replicas stand still for this long after each failure of a running replica. Nullopt: as
  // long as the stages of the policy take (docs/design/simulate.md).
  std::optional<double> stall_min;
  // The time until the replica is ready again, once there is a host for it; under kRestart, until
  // the job is.
  double down_min = 10;
  // All replicas stand still for this long when a replica comes back.
  double rejoin_min = 0;
  // The time until the job goes on after a failure of the whole job.
  double restart_min = 10;
  // The time between two checkpoints, from which a restart begins. 0 means that nothing is ever
  // lost.
  double checkpoint_min = 0;
  // Hosts that can replace failed ones while those are repaired. Nullopt: as many as are needed.
  std::optional<int> spares;
  double repair_h = 12;
  // How long nothing passes between two neighbours whose network fails; only rings that avoid the
  // link can do without it. 0 means that it fails once and connections are made again.
  double link_down_min = 0;
  // The time between two failures of the coordinator, and until it is back. 0 means that it never
  // fails.
  double coordinator_mtbf_h = 0;
  double coordinator_down_s = 2;
  int replicas_min = 1;
  // Under kSherd: a replica that its launcher has restarted this often within the window is given
  // up until the whole job restarts, as in `sherd run`. A window of 0 is the whole run.
  int restarts_max = 30;
  double restart_window_s = 3600;
  // How many bytes of gradients each GPU reduces with its counterparts, and how fast one can send.
  double gradient_mb = 500;
  double link_gbit_per_s = 400;

  std::uint64_t seed = 1;
  // Runs with different failures, for the confidence interval; 1 if arrivals are even.
  int runs = 30;

  // ---- performance ----

  // Simulates each step by itself. Otherwise steps that nothing disturbs are simulated as one, with
  // the same result.
  bool every_step = false;
  // 0 means one for each core.
  int threads = 0;
};

// The given step time, or else 20 s. If stall_min replaces sherd's own stages by those of the
// published formulas, which know no steps, it is half a second, or half as long again as it takes
// to decide about a step if that is more (replicas of more than 8,300 GPUs).
double step_s_of(const SimulationOptions& options);

// The mean time in minutes between two failures of the whole cluster: as given, or derived from its
// hosts.
double mtbf_min_of(const SimulationOptions& options);

// The mean time in seconds until the next host of the whole cluster becomes slow. REQUIRES: some
// do.
double mean_between_stragglers_s(const SimulationOptions& options);

struct SimulationResult {
  // An assumption of the result.
  struct Assumption {
    std::string name;
    std::string value;
    std::string source;
  };

  // How much of a resource is used, on average.
  struct ResourceUse {
    std::string name;
    std::string amount;  // With its unit.
    double share = 0;    // The share of what there is; 1 means all of it.
  };

  struct ControlTraffic {
    double coordinator_messages_per_s = 0;  // In both directions.
    double coordinator_in_bytes_per_s = 0;
    double coordinator_out_bytes_per_s = 0;
    // For one replica, with its ranks and the coordinator.
    double leader_messages_per_s = 0;
    double leader_bytes_per_s = 0;
    double log_records_per_s = 0;
    double log_bytes_per_day = 0;
  };

  FailurePolicy policy = FailurePolicy::kSherd;
  // The work done, as a share of what all replicas would do without faults: the mean of all runs
  // and its 95 % interval. A step made by some replicas counts as their share of it.
  double effective_training_time = 0;
  double low = 0;
  double high = 0;
  // The worst and the best run.
  double lowest_run = 0;
  double highest_run = 0;
  // What was lost: to standing still and repeating, and to replicas that were away.
  double stall_share = 0;
  double degraded_share = 0;
  // Means over all runs.
  double failures = 0;
  double commits = 0;
  double discarded_steps = 0;
  double epochs = 0;
  // The share of the time in which fewer than replicas_min replicas ran.
  double too_few_share = 0;
  // Replicas that were given up because their restarts were used up. Only under kSherd.
  double replicas_given_up = 0;
  double simulated_days = 0;
  int runs = 0;
  // Only under kSherd.
  std::optional<ControlTraffic> traffic;
  std::vector<ResourceUse> resources;  // Sorted by use, highest first.
  std::vector<Assumption> assumptions;
};

// Throws Error for options that contradict each other, saying what was expected and found.
SimulationResult simulate(const SimulationOptions& options);

}  // namespace sherd::sim
