// SPDX-License-Identifier: Apache-2.0
//
// ReplicaJob runs a fault-tolerant job on this host: replicas, which are groups of ranks that may
// die and are restarted, spares and, unless it runs elsewhere, their coordinator. It carries out
// the decisions of RestartPolicy. Thread rule: one thread, the only one of the process.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <sherd/launch/launch.h>
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/status.h"
#include "launch/control.h"
#include "launch/coordinator_process.h"
#include "launch/job_folder.h"
#include "launch/port.h"
#include "launch/restart_policy.h"
#include "launch/start_plan.h"
#include "launch/supervisor.h"

namespace sherd::launch {

class ReplicaJob {
 public:
  // Both must outlive the job. REQUIRES: options.replicas, and descriptors 0, 1 and 2 are open.
  ReplicaJob(const LaunchOptions& options, const Clock& clock);
  ReplicaJob(const ReplicaJob&) = delete;
  ReplicaJob& operator=(const ReplicaJob&) = delete;

  // Returns the exit status when the job is over. May be called only once.
  int run();

 private:
  StartStatus prepare();
  Status prepare_coordinator();
  StartStatus wait_for_coordinator();
  void end_without_coordinator();
  // Waits for events and handles them.
  void step();
  void ended(const std::vector<RankExit>& ends);
  void serve_control_requests();
  Result<GroupActions> act_on_request(const std::string& text);
  // Returns the last failure to start a group.
  StartStatus carry_out(GroupActions actions);
  // Returns the further actions, after a failure, which is kept in `last`, and for signals that
  // arrived meanwhile.
  GroupActions start_or_report(const GroupAction& action, StartStatus* last);
  StartStatus start_group(const GroupAction& action);
  StartStatus start_rank_of(const GroupAction& action, int rank, int port);
  void promote(const GroupAction& action);
  void signal_group(const GroupAction& action) const;
  Result<int> choose_port(int group);
  std::optional<Instant> deadline() const;
  void report();

  int ranks() const { return options_.ranks; }
  int slot_of(int group, int rank) const { return group * ranks() + rank; }

  const LaunchOptions& options_;
  const ReplicaOptions& replicas_;
  const Clock& clock_;
  Supervisor supervisor_;  // Slots: slot_of(), then the coordinator.
  RestartPolicy policy_;
  StartPlan plan_;
  std::optional<JobFolder> folder_;  // Where the coordinator keeps its log.
  std::string secret_file_;          // Empty if there is none.
  // Nullopt if it runs elsewhere.
  std::optional<CoordinatorProcess> coordinator_;
  bool ends_without_coordinator_ = false;
  std::optional<ControlSocket> control_;
  std::map<int, ReservedPort> ports_;  // Keyed by group.
  std::uint64_t ports_tried_ = 0;
  std::map<int, Descriptor> spare_ends_;  // Keyed by slot: pipes to spares.
  std::set<std::string> logs_;            // Logs that this run has begun.
};

}  // namespace sherd::launch
