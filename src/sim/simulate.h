// SPDX-License-Identifier: Apache-2.0
//
// Simulates training on up to hundreds of thousands of GPUs that fail, to size a cluster with: how
// much of the time goes into training, under which policy, with how many spare hosts. Under sherd's
// policy the state machines are those of the running system; time, network, disk and failures are
// simulated. `sherd simulate` is this function; docs/guide/simulate.md, docs/design/simulate.md.
// Thread rule: a pure function, which uses several threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::sim {

// What a failure costs the replicas that did not fail.
enum class FailurePolicy {
  // All stop, and start again from a checkpoint.
  kRestart,
  // As torchft: the step under way is discarded, the others go on.
  kTorchft,
  // The reduction under way is repeated with the gradients that are kept, the others go on.
  kSherd,
};

enum class Arrivals {
  kEven,     // One failure after the other, at equal distances, in turn.
  kPoisson,  // At random times, of random replicas.
};

// Times in minutes count from a failure.
struct SimulationOptions {
  // ---- behaviour ----

  FailurePolicy policy = FailurePolicy::kSherd;
  std::int64_t gpus = 98304;
  int replicas = 12;  // Divides gpus.
  int gpus_per_host = 8;
  // A step without faults. None: step_s_of().
  std::optional<double> step_s;
  // How long training is simulated.
  double days = 30;
  // Instead: as long as so many steps take without faults.
  std::optional<std::int64_t> steps;

  Arrivals arrivals = Arrivals::kPoisson;
  // Between two failures of the whole cluster. None: from the rate of hosts.
  std::optional<double> mtbf_min;
  double failures_per_1000_host_days = 6.5;
  // Failures that stop the whole job, and of the others those that take two replicas.
  double whole_job_share = 0;
  double two_replica_share = 0;
  // Hosts that become slow, how many times as long the steps of their replicas are then, and for how
  // long. 0: none does.
  double stragglers_per_1000_host_days = 0;
  double straggler_factor = 1.5;
  double straggler_min = 60;

  // Everybody stands still for so long after each failure of a running replica. None: as long as the
  // stages of the policy take (docs/design/simulate.md).
  std::optional<double> stall_min;
  // Until the replica is ready again, once there is a host for it; under kRestart, until the job is.
  double down_min = 10;
  // Everybody stands still for so long when a replica comes back.
  double rejoin_min = 0;
  // Until the job goes on after a failure of the whole of it.
  double restart_min = 10;
  // Between two checkpoints, for what starts again from one. 0: nothing is ever lost.
  double checkpoint_min = 0;
  // Hosts that can take the place of failed ones, which are repaired. None: as many as are needed.
  std::optional<int> spares;
  double repair_h = 12;
  // How long nothing passes between two neighbours whose network fails, which only rings that go round
  // can do without. 0: it fails once, and connections are made again.
  double link_down_min = 0;
  // Between two failures of the coordinator, and until it is there again. 0: it never fails.
  double coordinator_mtbf_h = 0;
  double coordinator_down_s = 2;
  int replicas_min = 1;
  // Under kSherd: a replica that its launcher has started again so often within the window is given up
  // until the whole job starts again, as `sherd run` does it. A window of 0: within the run.
  int restarts_max = 30;
  double restart_window_s = 3600;
  // Bytes of gradients that each GPU reduces with its counterparts, and what one can send.
  double gradient_mb = 500;
  double link_gbit_per_s = 400;

  std::uint64_t seed = 1;
  // Runs with different failures, for the interval; 1 if arrivals are even.
  int runs = 30;

  // ---- performance ----

  // Simulate each step by itself. Otherwise steps that nothing disturbs are made as one, with the
  // same result.
  bool every_step = false;
  // 0: one for each core.
  int threads = 0;
};

// The step that is given, else 20 s. Where stall_min replaces sherd's own stages by those of the
// published formulas, which know no steps, it is half a second.
double step_s_of(const SimulationOptions& options);

// Minutes between two failures of the whole cluster: those that are given, or of its hosts.
double mtbf_min_of(const SimulationOptions& options);

// Seconds between two hosts of the whole cluster that become slow. REQUIRES: some do.
double mean_between_stragglers_s(const SimulationOptions& options);

// Something the result rests on.
struct Assumption {
  std::string name;
  std::string value;
  std::string source;
};

// How much of a resource is used, on average.
struct ResourceUse {
  std::string name;
  std::string amount;  // With its unit.
  double share = 0;    // Of what there is; 1: all of it.
};

struct ControlTraffic {
  double coordinator_messages_per_s = 0;  // In and out.
  double coordinator_in_bytes_per_s = 0;
  double coordinator_out_bytes_per_s = 0;
  double leader_messages_per_s =
      0;  // Of one replica, with its ranks and the coordinator.
  double leader_bytes_per_s = 0;
  double log_records_per_s = 0;
  double log_bytes_per_day = 0;
};

struct SimulationResult {
  // Work done, as the share of what all replicas would do without faults: the mean of all runs, and
  // a 95 % interval of it. A step of some replicas counts as their share of it.
  double effective_training_time = 0;
  double low = 0;
  double high = 0;
  // The worst and the best run.
  double lowest_run = 0;
  double highest_run = 0;
  // What was lost: to standing still and repeating, and to replicas that were away.
  double stall_share = 0;
  double degraded_share = 0;
  // Means of all runs.
  double failures = 0;
  double commits = 0;
  double discarded_steps = 0;
  double epochs = 0;
  // The share of the time in which fewer than replicas_min replicas ran.
  double too_few_share = 0;
  // Replicas that were given up because their restarts were spent. Only under kSherd.
  double replicas_given_up = 0;
  double simulated_days = 0;
  int runs = 0;
  // Only under kSherd.
  std::optional<ControlTraffic> traffic;
  std::vector<ResourceUse> resources;  // The one that is used most comes first.
  std::vector<Assumption> assumptions;
};

// Throws Error for options that do not fit together, naming what was expected and found.
SimulationResult simulate(const SimulationOptions& options);

}  // namespace sherd::sim
