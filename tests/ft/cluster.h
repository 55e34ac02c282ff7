// SPDX-License-Identifier: Apache-2.0
//
// Cluster is a fault-tolerant run on this host: a coordinator and replicas of several ranks, each a
// process that is really killed, stopped and restarted, and proxies between them if a test wants to
// inject connection faults. A test arms what happens at which point of which rank, runs it, and
// examines the Outcome. Like the launcher it ends the siblings of a rank that dies. Thread rule:
// one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
#include <sherd/ft/coordinator.h>
#include "base/clock.h"
#include "base/descriptor.h"
#include "ft/outcome.h"
#include "ft/shared_number.h"
#include "ft/stall_meter.h"
#include "ft/toy_rank.h"
#include "support/fault_proxy.h"
#include "support/scratch_folder.h"

namespace sherd::ft::test {

// When a replica is lost, nothing is committed for this long: detection, a new epoch, an all-reduce
// and 100 ms, times five.
inline constexpr Duration kGap = std::chrono::milliseconds(1800);

// Sanitizers make everything slower.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowness = 4;
#else
inline constexpr int kSlowness = 1;
#endif

// A replica that says nothing for this long counts as lost in tests of silence.
inline constexpr std::chrono::milliseconds kSilence{1000};

// For the other tests: any process may stand still for longer than that while the machine is busy.
inline CoordinateOptions patient_coordinator() {
  CoordinateOptions options;
  options.dead_after = std::chrono::seconds(5);
  return options;
}

struct ClusterOptions {
  int replicas = 3;
  int ranks = 1;
  std::int64_t steps = 30;
  std::chrono::microseconds step_time{20000};
  std::vector<std::int64_t> buckets{1500, 2501};
  std::int64_t samples = 4;  // Per replica and step.
  // A lost replica is restarted, after `restart_after`.
  bool restarts = false;
  std::chrono::milliseconds restart_after{0};
  // A replica that has left in order comes back, too.
  bool returns = false;
  bool ends_siblings = true;
  // Replicas that have not ended this long after the first one that made the last step are not
  // waited for; 0 means that all are.
  std::chrono::milliseconds ends_after_done{0};
  // Whether there are proxies between all pairs of replicas, and to the coordinator.
  bool links = false;
  // Whether there are proxies in front of replicas from which states are fetched.
  bool fetch_links = false;
  // Lost segments on `links`; see FaultProxyOptions.
  int segments_lost_per_mille = 0;
  std::uint64_t fetch_bytes_per_s_max = 0;
  // See SessionOptions::warm_up.
  bool warms_up = false;
  // The limit of sums, both where they are kept and where they are collected.
  std::uint64_t sums_bytes_max = std::uint64_t{1} << 30U;
  std::size_t ballast_bytes = 0;
  // How many steps lie between two comparisons of states; 0 turns them off.
  int digest_every = 0;
  // Whether all replicas stop; otherwise the gradients are left out.
  bool bad_gradients_stop = false;
  // The folder of the coordinator's log; if empty, it is one in memory, so that no step waits for a
  // disk that others use, too.
  std::string log_folder{};
  // The options that the cluster does not set itself: limits and timeouts.
  CoordinateOptions coordinator = patient_coordinator();
  std::chrono::milliseconds limit{40000 * kSlowness};
};

// The moment when a rank reaches a point, in one incarnation of its replica. The points are those
// of RankAgentOptions::TestHooks and the program's: "idle", "forward", "backward", "gradients",
// "update", "updated"; and "sum", before the digest of the reduced sum is computed.
struct Trigger {
  ReplicaId replica = 0;
  int rank = 0;
  std::string point;
  std::int64_t step = 0;  // The step that it is about to make; -1 for any.
  int life = 1;
};

// This incarnation of a replica, or a later one, computes a step above `above`: it has come back.
struct Rejoin {
  ReplicaId replica = 0;
  int life = 2;
  std::int64_t above = 0;
  std::int64_t more = 20;  // How many steps remain until the end of the run.
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // ---- the script, before run() or during it ----

  // `act` is called when the moment comes for the first time, and the thread that reached it waits
  // until it returns. The rank then does what it returns: nothing, "throw", "exit", "segv",
  // "abort", "leave", "leave in STEPS", "sleep MS", "flip gradient", "flip parameter", "nan
  // gradient", "spike gradient"; at "sum", "flip sum".
  void at(const Trigger& moment, std::function<std::string()> act);
  void kill_at(const Trigger& moment);
  // Stops it, and continues it after `lasts`; 0 means never.
  void stop_at(const Trigger& moment, std::chrono::milliseconds lasts);
  void order_at(const Trigger& moment, const std::string& order);
  // Called when a rank is the first to hold that step.
  void when_held(std::int64_t step, std::function<void()> act);
  void after(Duration time, std::function<void()> act);
  // The run ends after this return, and after all others that are awaited, instead of after
  // ClusterOptions::steps: the time for which a replica is kept out is not counted in steps.
  void end_behind(const Rejoin& awaited);

  // ---- actions ----

  // Starts a new incarnation.
  void start(ReplicaId replica);
  void signal(ReplicaId replica, int rank, int number);
  void signal_all(ReplicaId replica, int number);
  // The process of the last incarnation; it may be woken after another one has started.
  pid_t pid_of(ReplicaId replica, int rank);
  void wake(pid_t pid);
  void start_coordinator();
  void signal_coordinator(int number);
  // Whether the last one has not ended on its own.
  bool coordinator_lives() const;
  // Stops the coordinator and starts another one on the same log, for all links; then continues the
  // former one.
  void start_successor();
  // Wakes the former coordinator and connects only this replica with it, until forget_former().
  void wake_former(ReplicaId replica);
  void forget_former(ReplicaId replica);
  // The log of coordinators started later.
  void set_log(const std::string& path) { options_.coordinator.log = path; }
  const std::string& log() const { return options_.coordinator.log; }
  // Starts later coordinators with `--recover-from-replicas`.
  void set_recovers() { options_.coordinator.recover_from_replicas = true; }
  // The configuration of replicas started later.
  void set_config(std::uint64_t config) { config_ = config; }
  void set_restarts(bool restarts) { options_.restarts = restarts; }
  void set_buckets(std::vector<std::int64_t> buckets) {
    buckets_ = std::move(buckets);
  }
  // Takes effect at once, and for later incarnations, too.
  void shift_wall_clock_of(ReplicaId replica, Duration by);
  void shift_coordinators_wall_clock(Duration by);
  // Sets its monotonic clock ahead, for incarnations started later; see shifted_clock.h.
  void set_clock_ahead(ReplicaId replica, std::chrono::seconds ahead) {
    ahead_[replica] = ahead;
  }

  sherd::test::FaultProxy& link(ReplicaId from, ReplicaId to, int rank = 0);
  sherd::test::FaultProxy& coordinator_link(ReplicaId replica);
  sherd::test::FaultProxy& fetch_link(ReplicaId donor, int rank = 0);
  // Cuts all links between these two; everything that was sent arrives after heal().
  void part(ReplicaId one, ReplicaId other);
  void heal();

  // All ports on which processes listen now.
  std::vector<int> ports() const;
  std::int64_t last_held() const { return last_held_; }
  // The last step, also for running replicas. REQUIRES: no replica is near the former one.
  void set_steps(std::int64_t steps) { steps_.set(steps); }
  bool lives(ReplicaId replica) const;
  int life_of(ReplicaId replica) const;

  // Runs until all processes that are not stopped have ended.
  Outcome run();

 private:
  struct Process {
    Life life;
    Descriptor socket;
    Descriptor ended;
    Duration ahead{0};  // Added to the test's clock.
    bool stopped = false;
    bool gone = false;
  };
  struct ArmedTrigger {
    Trigger moment;
    std::function<std::string()> act;
    bool done = false;
  };
  using Key = std::tuple<ReplicaId, ReplicaId, int>;

  void make_links();
  void fork_rank(ReplicaId replica, int rank, Incarnation incarnation);
  ToyRankOptions rank_options(
      ReplicaId replica, int rank, Incarnation incarnation) const;
  Process* process(ReplicaId replica, int rank);
  void turn(Instant until);
  void run_timers();
  void listen_to(Process& process);
  void heard(Process& process, const TraceEvent& event);
  void introduce(ReplicaId replica);
  std::string published(const Process& process);
  void reached(Process& process, const TraceEvent& event);
  void computes(const Life& life, std::int64_t step);
  void reap(Process& process);
  void lost(const Process& process);
  void start_later(ReplicaId replica);
  bool over() const;
  void end_coordinator();
  Outcome outcome(bool in_time);
  std::set<std::string> segments_left() const;

  const std::set<std::string> segments_before_;
  const sherd::testing::ScratchFolder folder_;
  const sherd::testing::ScratchFolder memory_folder_{"/dev/shm", "log_of_run_"};
  const StallMeter stalls_;
  ClusterOptions options_;
  SharedNumber steps_;
  const SteadyClock clock_;
  std::uint64_t config_ = 5;
  std::vector<std::int64_t> buckets_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<ArmedTrigger>> armed_;
  std::multimap<Instant, std::function<void()>> timers_;
  std::multimap<std::int64_t, std::function<void()>> when_held_;
  std::vector<Rejoin> awaited_;
  std::map<ReplicaId, int> lives_;
  std::map<ReplicaId, std::chrono::seconds> ahead_;
  std::set<ReplicaId> to_start_;
  std::map<Key, std::unique_ptr<sherd::test::FaultProxy>> links_;
  std::map<ReplicaId, std::unique_ptr<sherd::test::FaultProxy>> to_coordinator_;
  std::map<std::pair<ReplicaId, int>, std::unique_ptr<sherd::test::FaultProxy>>
      fetch_links_;
  std::vector<pid_t> coordinators_;
  int former_port_ = 0;
  Incarnation incarnations_ = 100;
  std::int64_t last_held_ = -1;
  Instant struck_at_{0};
  Instant done_at_{0};  // When the first replica was done; 0 if none is.
};

}  // namespace sherd::ft::test
