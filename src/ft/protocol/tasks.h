// SPDX-License-Identifier: Apache-2.0
//
// The tasks that a replica's state machine (replica.h) gives to the processes of the replica. Most
// of them go to every rank as they are, encoded by ft/replica/rank_messages.h; the leader alone
// carries out JoinTask, CatchUpTask and ReportTask. Thread rule: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

// Computes gradients of these samples on the state that is held. A replica without samples follows:
// it contributes zeros. The task replaces the one before it, whose gradients are dropped.
struct ComputeTask {
  // Counts the tasks from 1; 0: a warm-up, whose result is dropped.
  std::uint64_t serial = 0;
  StateId base;
  std::vector<SampleRange> samples;
  int replicas = 0;  // Members, with those that follow.
  int place = 0;     // This replica's index among them.
  bool operator==(const ComputeTask&) const = default;
};
// Connects to these members, beside those of the epoch under way.
struct JoinTask {
  Epoch epoch;
  std::vector<Member> members;
  bool operator==(const JoinTask&) const = default;
};
// Sums the gradients of the last ComputeTask as they come.
struct ReduceTask {
  Attempt attempt;
  std::vector<double> weights;  // The samples of each member, in ring order.
  bool operator==(const ReduceTask&) const = default;
};
// Ends all reductions of the epoch; the gradients are kept.
struct StopReduceTask {
  Epoch epoch;
  bool operator==(const StopReduceTask&) const = default;
};
// Applies the sum that was voted for, all or nothing.
struct ApplyTask {
  Commit commit;
  bool operator==(const ApplyTask&) const = default;
};
// Fetches the sum of the commit after the held state, or another state as a whole, from live
// replicas. It runs beside everything else; nothing is written yet.
struct CatchUpTask {
  std::optional<StateId> held;
  StateId target;
  bool operator==(const CatchUpTask&) const = default;
};
// Drops what is being fetched.
struct StopCatchUpTask {
  bool operator==(const StopCatchUpTask&) const = default;
};
// Writes what was fetched, all or nothing.
struct InstallTask {
  std::uint64_t serial = 0;  // Counts the tasks.
  bool operator==(const InstallTask&) const = default;
};
// Ends the replica for good.
struct StopTask {
  std::string
      reason;  // Empty: the run has ended, or the replica has left in order.
  bool operator==(const StopTask&) const = default;
};
// Sends the report to the coordinator, as after each reconnection and with each heartbeat.
struct ReportTask {
  Report report;
  bool operator==(const ReportTask&) const = default;
};
using Task = std::variant<
    ComputeTask,
    JoinTask,
    ReduceTask,
    StopReduceTask,
    ApplyTask,
    CatchUpTask,
    StopCatchUpTask,
    InstallTask,
    StopTask,
    ReportTask>;
using Tasks = std::vector<Task>;

}  // namespace sherd::ft
