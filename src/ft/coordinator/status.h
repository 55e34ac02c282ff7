// SPDX-License-Identifier: Apache-2.0
//
// The status of a run as the coordinator shows it, and functions that render it as HTML, as
// Prometheus metrics and as JSON. Texts that come from other processes are escaped here. Thread
// rule: values, pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include "ft/coordinator/hang_report.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

struct ReplicaStatus {
  ReplicaId replica = 0;
  // "member", "follows" (a member without samples), "behind", "ready" (it holds the state but is no
  // member), "hangs", "fenced", "lost", "left" or "done".
  std::string state{};
  bool slow = false;
  std::optional<StateId> held{};
  std::int64_t lag = 0;  // How many steps it is behind the last commit.
  std::string activity{};
  std::string address{};  // Where its connection comes from.
  double since_s = 0;     // How long it has been in this state.
  // All ranks; in a large replica only those that have moved least.
  std::vector<RankActivity> ranks{};
};

struct RunStatus {
  // A failure of a replica, a link or the log.
  struct Failure {
    double ago_s = 0;
    std::string culprit;
    std::string cause;
  };

  std::uint64_t run = 0;
  double up_s = 0;
  double slept_s = 0;      // How long the coordinator itself did not run.
  std::string complaint;   // Why nothing is decided now; empty if all is well.
  std::uint64_t term = 0;  // Counts the starts of the coordinator.
  Epoch epoch;
  std::string stage;  // "joining", "running", "closed", "waiting for replicas".
  StateId canonical;
  std::int64_t samples = 0;  // How many samples are committed.
  double since_commit_s = 0;
  double steps_per_s = 0;
  double longest_gap_s = 0;
  // The share of time in which steps were committed at their usual pace (pace.h).
  std::optional<double> effective;
  std::vector<ReplicaStatus> replicas;
  std::vector<Failure> failures;  // Newest first.
  // "commits" -> 12; names are [a-z_]+.
  std::map<std::string, std::uint64_t> counters;
};

// What is shown of the run number, which only peers may know: eight digits derived from it.
std::string run_name(std::uint64_t run);

// A page that reloads itself every 2 s and loads nothing from other sites.
std::string html_of(const RunStatus& status);
// Text format 0.0.4.
std::string prometheus_of(const RunStatus& status);
std::string json_of(const RunStatus& status);

}  // namespace sherd::ft
