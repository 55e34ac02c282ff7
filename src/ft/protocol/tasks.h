// SPDX-License-Identifier: Apache-2.0
//
// The tasks that a replica's state machine (replica.h) gives to the processes of the replica. Most
// of them go unchanged to every rank, encoded by ft/replica/rank_messages.h; CatchUpTask and
// ReportTask are carried out by the leader only, and so is EpochMembers: the replica connects to
// these members, in addition to those of the current epoch. Thread rule: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

// Computes the gradients of these samples on the held state. A replica without samples follows: it
// contributes zeros. The task replaces the previous one, whose gradients are dropped.
struct ComputeTask {
  // Counts the tasks from 1; 0 is a warm-up whose result is dropped.
  std::uint64_t serial = 0;
  StateId base;
  std::vector<SampleRange> samples;
  int replicas = 0;  // All members, including those that follow.
  int place = 0;     // This replica's index among them.
  bool operator==(const ComputeTask&) const = default;
};
// Sums the gradients of the last ComputeTask as they become ready.
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
// Applies the sum that was voted for, entirely or not at all.
struct ApplyTask {
  Commit commit;
  bool operator==(const ApplyTask&) const = default;
};
// Fetches from live replicas either the sum of the commit after the held state, or another state as
// a whole. It runs concurrently with everything else; nothing is written yet.
struct CatchUpTask {
  std::optional<StateId> held;
  StateId target;
  bool operator==(const CatchUpTask&) const = default;
};
// Cancels the fetch under way.
struct StopCatchUpTask {
  bool operator==(const StopCatchUpTask&) const = default;
};
// Installs what was fetched, entirely or not at all.
struct InstallTask {
  std::uint64_t serial = 0;  // Counts the tasks.
  bool operator==(const InstallTask&) const = default;
};
// Ends the replica for good.
struct StopTask {
  // Empty if the run has ended or the replica has left in order.
  std::string reason;
  bool operator==(const StopTask&) const = default;
};
// Sends the report to the coordinator; the same happens after each reconnection and with each
// heartbeat.
struct ReportTask {
  Report report;
  bool operator==(const ReportTask&) const = default;
};
using Task = std::variant<
    ComputeTask,
    EpochMembers,
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
