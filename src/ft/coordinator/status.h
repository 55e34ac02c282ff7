// SPDX-License-Identifier: Apache-2.0
//
// What the coordinator shows of a run: values, and pure functions that write them
// for people, for Prometheus and for programs. Texts in it come from other
// processes and are escaped here. Thread rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include "ft/protocol/identity.h"

namespace sherd::ft {

struct RankStatus {
  std::string activity;
  double since_s = 0;  // In which nothing of it has moved.
  double quiet_s = 0;  // In which its agent has said nothing.
  std::optional<ReplicaId> waits_for{};
  bool to_read = false;  // For its reading, else for its bytes.
  // Of the reduction under way; none of it: 0 slices.
  std::uint32_t bucket = 0;
  std::string unit{};  // What the bucket is of.
  std::int64_t slices_done = 0;
  std::int64_t slices = 0;
  std::string does{};  // All of it, as a sentence without its subject.
};

struct ReplicaStatus {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  // "member", "follows" (a member without samples), "behind", "ready" (it holds
  // the state and is not a member), "hangs", "fenced", "lost" or "left".
  std::string state{};
  bool slow = false;
  std::optional<StateId> held{};
  std::int64_t lag = 0;  // Steps behind the last commit.
  std::string activity{};
  std::string address{};  // Where its connection comes from.
  double since_s = 0;     // In this state.
  std::vector<RankStatus> ranks{};
};

// Of a replica, a link or the log.
struct FailureStatus {
  double ago_s = 0;
  std::string culprit;
  std::string cause;
};

struct RunStatus {
  std::uint64_t run = 0;
  double up_s = 0;
  double slept_s = 0;      // In which the coordinator itself stood still.
  std::string complaint;   // Why nothing is decided now; empty: all is well.
  std::uint64_t term = 0;  // The coordinator's life.
  Epoch epoch;
  std::string stage;  // "joining", "running", "closed", "waiting for replicas".
  StateId canonical;
  std::int64_t samples = 0;  // Committed.
  double since_commit_s = 0;
  double steps_per_s = 0;
  double longest_gap_s = 0;
  // Share of the time since the first commit in which steps were committed at
  // their usual pace (pace.h).
  std::optional<double> effective;
  std::vector<ReplicaStatus> replicas;
  std::vector<FailureStatus> failures;  // Newest first.
  // "commits" -> 12; names are [a-z_]+.
  std::map<std::string, std::uint64_t> counters;
};

// A page that shows itself anew every 2 s, without anything from elsewhere.
std::string html_of(const RunStatus& status);
// Text format 0.0.4.
std::string prometheus_of(const RunStatus& status);
std::string json_of(const RunStatus& status);

// "&lt;": for text and attributes of HTML.
std::string html_escaped(const std::string& text);

}  // namespace sherd::ft
