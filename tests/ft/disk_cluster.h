// SPDX-License-Identifier: Apache-2.0
//
// DiskCluster is a fault-tolerant run whose replicas save checkpoints: processes with LibTorch, a
// coordinator, and a folder. All processes can be killed and restarted. When a rank ends, so do its
// siblings, as under the launcher. Thread rule: one thread; the test's process must not have used
// LibTorch.
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
#include "base/descriptor.h"
#include "ft/disk_rank.h"
#include "ft/protocol/history.h"
#include "ft/shared_number.h"
#include "support/scratch_folder.h"

namespace sherd::ft::test {

struct DiskClusterOptions {
  // Created if necessary; if empty, one that is removed with the cluster.
  std::string folder{};
  int replicas = 3;
  int ranks = 1;
  bool on_devices = false;
  std::int64_t steps = 30;
  std::int64_t save_every = 5;
  int keep = 0;  // How many checkpoints; 0 means all.
  // For the first incarnation of each replica.
  DiskFault fault = DiskFault::kNone;
  std::string fault_at{};
  std::int64_t kills_max = 1000;  // Killed by the fault, over all replicas.
  // For replica 1; see DiskRankOptions.
  std::int64_t nan_at = 0;
  std::int64_t flip_at = 0;
};

class DiskCluster {
 public:
  explicit DiskCluster(const DiskClusterOptions& options);
  ~DiskCluster();
  DiskCluster(const DiskCluster&) = delete;
  DiskCluster& operator=(const DiskCluster&) = delete;

  // ---- actions ----

  void start(int replica);
  void start_all();
  void kill(int replica);
  void kill_all();
  void start_coordinator();
  void kill_coordinator();
  // Whether replicas that die are restarted.
  void set_restarts(bool restarts) { restarts_ = restarts; }
  // Lets processes that hang go on.
  void release() { release_.close(); }
  // The options of coordinators and replicas started later.
  CoordinateOptions coordinator;
  std::string checkpoints;
  std::map<int, std::string> checkpoints_of;  // Replaces it for some replicas.
  int width = 16;
  std::int64_t steps = 0;  // Initially as in the options.

  // Runs until `enough` holds; if that takes too long, returns false and fails the test.
  bool run_until(const std::function<bool()>& enough);
  bool run_until_made(std::int64_t step);
  // Runs until all replicas have ended in order.
  bool run_until_done();
  bool run_until_failed(int replica);

  // ---- what processes reported ----

  // The last step made by any replica.
  std::int64_t made() const { return made_; }
  // The names of states that replicas have loaded.
  const std::vector<std::string>& loaded() const { return loaded_; }
  std::string failure_of(int replica) const;
  std::string failure_of_any() const;
  int life_of(int replica) const;
  std::size_t failures() const { return failures_.size(); }
  std::size_t ranks_alive() const { return processes_.size(); }
  bool is_done(int replica) const { return done_.contains({replica, 0}); }
  // The last step whose state its rank 0 held in this incarnation; -1 if none.
  std::int64_t held_by(int replica) const;
  // The hash of a rank's state at that step, in a run in which no step was made twice; empty if it
  // is not known.
  std::string hash_at(std::int64_t step, int rank) const;
  bool saved(std::int64_t step) const;
  std::string path_of(std::int64_t step) const;
  std::string said() const;  // Everything that processes wrote to stderr.
  // The records of the log; the coordinator is ended to read it.
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
  std::string heard_;  // An incomplete line.
  std::vector<Process> processes_;
  pid_t coordinator_ = -1;
  std::map<int, int> lives_;
  std::set<std::pair<int, int>> done_;  // Pairs of replica and rank.
  std::map<int, std::string> failures_;
  // Keyed by rank and state.
  std::map<std::string, std::string> hashes_;
  // Keyed by replica and incarnation.
  std::map<std::pair<int, int>, std::int64_t> held_;
  std::vector<std::string> loaded_;
  std::int64_t made_ = 0;
  bool restarts_ = false;
};

}  // namespace sherd::ft::test
