// SPDX-License-Identifier: Apache-2.0
//
// Cluster is a fault-tolerant run on this host: a coordinator and replicas of some
// ranks, each a process that is really killed, stopped and started again, and
// proxies between them where a test wants to spoil connections. A test arms what
// happens at which point of which rank, runs it, and asks the Outcome. Like the
// launcher it ends the siblings of a rank that dies. Thread rule: one thread.
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
#include "ft/toy_rank.h"
#include "support/fault_proxy.h"
#include "support/scratch_folder.h"

namespace sherd::ft::test {

// When a replica is lost, nothing is committed for as long: detection, a new epoch, an all-reduce
// and 100 ms, times five.
inline constexpr Duration kGap = std::chrono::milliseconds(1800);

struct ClusterOptions {
  int replicas = 3;
  int ranks = 1;
  std::int64_t steps = 30;
  std::chrono::microseconds step_time{20000};
  std::vector<std::int64_t> buckets{1500, 2501};
  std::int64_t samples = 4;  // Of a replica and step.
  // A replica that is lost is started again, so long after.
  bool restarts = false;
  std::chrono::milliseconds restart_after{0};
  // One that has left in order comes back, too.
  bool returns = false;
  bool ends_siblings = true;
  // Who has not ended so long after the first that has made the last step is not
  // waited for; 0: all are.
  std::chrono::milliseconds ends_after_done{0};
  // Proxies between all pairs of replicas, and to the coordinator.
  bool links = false;
  // Proxies before those that states are fetched from.
  bool fetch_links = false;
  // Of segments on `links`; see FaultProxyOptions.
  int segments_lost_per_mille = 0;
  std::uint64_t fetch_bytes_per_s_max = 0;
  // See SessionOptions::warm_up.
  bool warms_up = false;
  // Of sums, where they are kept and where they are collected.
  std::uint64_t sums_bytes_max = std::uint64_t{1} << 30U;
  std::size_t ballast_bytes = 0;
  // Steps from one comparison of states to the next; 0: none.
  int digest_every = 0;
  bool bad_gradients_stop = false;  // All; else they are left out.
  // Where the coordinator's log is; empty: among other files of the test.
  std::string log_folder{};
  // What is not of the cluster's own: its limits and timeouts.
  CoordinateOptions coordinator{};
  std::chrono::milliseconds limit{40000};
};

// When a rank reaches a point, in one life of its replica. The points are those of
// RankAgentTestHooks and the program's: "idle", "forward", "backward", "gradients",
// "update", "updated"; and "sum", before the digest of what was reduced is made.
struct Trigger {
  ReplicaId replica = 0;
  int rank = 0;
  std::string point;
  std::int64_t step = 0;  // That it is about to make; -1: whenever.
  int life = 1;
};

// A life of a replica, or a later one, that computes a step above `above`: one that
// has come back.
struct Rejoin {
  ReplicaId replica = 0;
  int life = 2;
  std::int64_t above = 0;
  std::int64_t more = 20;  // Steps until the end of the run.
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // ---- the script, before run() or from within ----

  // `act` is called when the moment comes for the first time, and the thread that
  // reached it waits until it returns; what it returns the rank does: nothing,
  // "throw", "exit", "segv", "abort", "leave", "leave in STEPS", "sleep MS", "flip
  // gradient", "flip parameter", "nan gradient", "spike gradient"; at "sum", "flip
  // sum".
  void at(const Trigger& moment, std::function<std::string()> act);
  void kill_at(const Trigger& moment);
  // And continued after so long; 0: never.
  void stop_at(const Trigger& moment, std::chrono::milliseconds lasts);
  void order_at(const Trigger& moment, const std::string& order);
  // When a rank is the first to hold that step.
  void when_held(std::int64_t step, std::function<void()> act);
  void after(Duration time, std::function<void()> act);
  // The run ends behind this return, and behind all that are asked for, in place of
  // ClusterOptions::steps: how long one is kept out is not counted in steps.
  void end_behind(const Rejoin& awaited);

  // ---- what it may do ----

  // A new life.
  void start(ReplicaId replica);
  void signal(ReplicaId replica, int rank, int number);
  void signal_all(ReplicaId replica, int number);
  // Of the last life; it may be woken when there is another.
  pid_t pid_of(ReplicaId replica, int rank);
  void wake(pid_t pid);
  void start_coordinator();
  void signal_coordinator(int number);
  // Stops it and starts another on the same log, for all links; then continues
  // the former one.
  void start_successor();
  // And has this replica talk to it alone, until it forgets it again.
  void wake_former(ReplicaId replica);
  void forget_former(ReplicaId replica);
  // With this log in place of its own, for starts to come.
  void set_log(const std::string& path) { options_.coordinator.log = path; }
  const std::string& log() const { return options_.coordinator.log; }
  // With `--recover-from-replicas`, for starts to come.
  void set_recovers() { options_.coordinator.recover_from_replicas = true; }
  // For starts to come.
  void set_config(std::uint64_t config) { config_ = config; }
  void set_restarts(bool restarts) { options_.restarts = restarts; }
  void set_buckets(std::vector<std::int64_t> buckets) {
    buckets_ = std::move(buckets);
  }
  // At once, for its lives to come, too.
  void shift_wall_clock_of(ReplicaId replica, Duration by);
  void shift_coordinators_wall_clock(Duration by);
  // Of its monotonic clock, for starts to come; see shifted_clock.h.
  void set_clock_ahead(ReplicaId replica, std::chrono::seconds ahead) {
    ahead_[replica] = ahead;
  }

  sherd::test::FaultProxy& link(ReplicaId from, ReplicaId to, int rank = 0);
  sherd::test::FaultProxy& coordinator_link(ReplicaId replica);
  sherd::test::FaultProxy& fetch_link(ReplicaId donor, int rank = 0);
  // Cuts all links between these two; everything arrives after heal().
  void part(ReplicaId one, ReplicaId other);
  void heal();

  // All that somebody listens on now.
  std::vector<int> ports() const;
  std::int64_t last_held() const { return last_held_; }
  // The last one, for all who run, too. REQUIRES: nobody is near the former.
  void set_steps(std::int64_t steps) { steps_.set(steps); }
  bool lives(ReplicaId replica) const;
  int life_of(ReplicaId replica) const;

  // Until all processes that are not stopped have ended.
  Outcome run();

 private:
  struct Process {
    Life life;
    Descriptor socket;
    Descriptor ended;
    Duration ahead{0};  // Of the test's clock.
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
  Instant done_at_{0};  // The first one; 0: none is.
};

}  // namespace sherd::ft::test
