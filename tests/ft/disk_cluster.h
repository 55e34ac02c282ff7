// SPDX-License-Identifier: Apache-2.0
//
// DiskCluster is a fault-tolerant run whose replicas save checkpoints: processes
// with LibTorch, a coordinator, and a folder. All of them can be killed and started
// again. Ranks' siblings end with them, as under the launcher. Thread rule: one
// thread; the test's process must not have used LibTorch.
#pragma once

#include <sys/types.h>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include <sherd/ft/coordinator.h>
#include "base/clock.h"
#include "base/descriptor.h"
#include "ft/disk_rank.h"
#include "ft/protocol/history.h"
#include "ft/shared_number.h"
#include "support/scratch_folder.h"

namespace sherd::ft::test {

struct DiskClusterOptions {
  std::string folder{};  // It is made; empty: one that goes with the cluster.
  int replicas = 3;
  int ranks = 1;
  bool on_devices = false;
  std::int64_t steps = 30;
  std::int64_t save_every = 5;
  int keep = 0;  // Checkpoints; 0: all.
  // Of each replica's first life.
  DiskFault fault = DiskFault::kNone;
  std::string fault_at{};
  std::int64_t kills_max = 1000;  // By the fault, of all replicas together.
  // Of replica 1; see DiskRankOptions.
  std::int64_t nan_at = 0;
  std::int64_t flip_at = 0;
};

class DiskCluster {
 public:
  explicit DiskCluster(const DiskClusterOptions& options);
  ~DiskCluster();
  DiskCluster(const DiskCluster&) = delete;
  DiskCluster& operator=(const DiskCluster&) = delete;

  // ---- what it may do ----

  void start(int replica);
  void start_all();
  void kill(int replica);
  void kill_all();
  void start_coordinator();
  void kill_coordinator();
  // Those that die are started again.
  void set_restarts(bool restarts) { restarts_ = restarts; }
  // What hangs goes on.
  void release() { release_.close(); }
  // Of coordinators and replicas to come.
  CoordinateOptions coordinator;
  std::string checkpoints;
  std::map<int, std::string> checkpoints_of;  // Instead, of some replicas.
  int width = 16;
  std::int64_t steps = 0;  // As in the options, at first.

  // Until `enough`; false, and a failure of the test, when it takes too long.
  bool run_until(const std::function<bool()>& enough);
  bool run_until_made(std::int64_t step);
  // All replicas have ended in order.
  bool run_until_done();
  bool run_until_failed(int replica);

  // ---- what was told ----

  std::int64_t made() const { return made_; }  // By anybody.
  // Names of states that replicas have loaded.
  const std::vector<std::string>& loaded() const { return loaded_; }
  std::string failure_of(int replica) const;
  std::string failure_of_any() const;
  int life_of(int replica) const;
  std::size_t failures() const { return failures_.size(); }
  std::size_t ranks_alive() const { return processes_.size(); }
  bool is_done(int replica) const { return done_.contains({replica, 0}); }
  // The last step of which its rank 0 held the state in this life; -1: none.
  std::int64_t held_by(int replica) const;
  // Of a rank's state at that step, of a run in which none was made twice; empty: it is not known.
  std::string hash_at(std::int64_t step, int rank) const;
  bool saved(std::int64_t step) const;
  std::string path_of(std::int64_t step) const;
  std::string said() const;  // All that anybody wrote to stderr.
  // Of the log; the coordinator ends for it.
  std::vector<Record> log();

 private:
  struct Process {
    int replica = 0;
    int rank = 0;
    int life = 0;
    pid_t pid = -1;
  };

  void fork_rank(const DiskRankOptions& options);
  void hear();
  void heard(const std::string& line);
  void reap();

  std::optional<sherd::testing::ScratchFolder> scratch_;
  const DiskClusterOptions options_;
  const std::string folder_;
  SharedNumber kills_left_;
  Descriptor told_;
  Descriptor tell_;
  Descriptor waits_;
  Descriptor release_;
  std::string heard_;  // Of a line that is not complete.
  std::vector<Process> processes_;
  pid_t coordinator_ = -1;
  std::map<int, int> lives_;
  std::set<std::pair<int, int>> done_;  // Replica and rank.
  std::map<int, std::string> failures_;
  std::map<std::string, std::string> hashes_;         // By rank and state.
  std::map<std::pair<int, int>, std::int64_t> held_;  // By replica and life.
  std::vector<std::string> loaded_;
  std::int64_t made_ = 0;
  bool restarts_ = false;
};

}  // namespace sherd::ft::test
