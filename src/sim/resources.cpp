// SPDX-License-Identifier: Apache-2.0
//
// What the control of a run sends and writes, and what share of the machines' means that is.
#include <algorithm>
#include <cstdio>
#include <string>

#include "base/clock.h"
#include "ft/wire/codec.h"
#include "sim/report.h"

namespace sherd::sim {
namespace {

// What the coordinator's host and a leader's have, and what a message costs them; the same is in
// assumptions.cpp, for people. The coordinator looks at all replicas for each report.
constexpr double kLinkBytesPerS = 100e9 / 8;
constexpr double kMessageS = 5e-6;
constexpr double kByteS = 1e-9;
constexpr double kReplicaS = 0.15e-6;
// Beyond it the coordinator refuses a report.
constexpr double kReportBytesMax = 1 << 20;

std::string amount(double value, const char* unit) {
  static constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T"};
  int prefix = 0;
  for (; value >= 1000 && prefix < 4; ++prefix) {
    value /= 1000;
  }
  char text[40];
  std::snprintf(text, sizeof text, "%.3g %s%s", value, kPrefixes[prefix], unit);
  return text;
}

}  // namespace

void add_traffic(
    const SimulationOptions& options,
    const RunOutcome& run,
    SimulationResult& result) {
  if (!run.traffic) {
    return;
  }
  constexpr double kSecondsPerDay = 86400;
  const auto& sent = *run.traffic;
  const double s = run.elapsed_s;
  // A heartbeat is a report that repeats the last one, and is answered with a view.
  const double heartbeats = run.replica_s / seconds(ft::kHeartbeatInterval);
  const auto report_bytes = static_cast<double>(sent.report_bytes());
  const auto view_bytes = static_cast<double>(sent.view_bytes());
  ControlTraffic traffic;
  const double reports_per_s =
      (static_cast<double>(sent.reports().messages) + heartbeats) / s;
  const double views_per_s =
      (static_cast<double>(sent.views().messages) + heartbeats) / s;
  traffic.coordinator_messages_per_s = reports_per_s + views_per_s;
  traffic.coordinator_in_bytes_per_s =
      (static_cast<double>(sent.reports().bytes) + heartbeats * report_bytes) /
      s;
  traffic.coordinator_out_bytes_per_s =
      (static_cast<double>(sent.views().bytes) + heartbeats * view_bytes) / s;
  const auto ranks = static_cast<double>(options.gpus / options.replicas);
  const auto rank = rank_traffic(options.replicas);
  const double steps_per_s = static_cast<double>(run.commits) / s;
  traffic.leader_messages_per_s =
      ranks * (rank.messages_per_step * steps_per_s + rank.heartbeats_per_s) +
      traffic.coordinator_messages_per_s / options.replicas;
  traffic.leader_bytes_per_s = ranks *
          (rank.bytes_per_step * steps_per_s +
           rank.heartbeats_per_s * rank.bytes_per_heartbeat) +
      (traffic.coordinator_in_bytes_per_s +
       traffic.coordinator_out_bytes_per_s) /
          options.replicas;
  traffic.log_records_per_s = static_cast<double>(sent.records().messages) / s;
  traffic.log_bytes_per_day =
      static_cast<double>(sent.records().bytes) / s * kSecondsPerDay;

  auto& resources = result.resources;
  const auto coordinator_bytes =
      traffic.coordinator_in_bytes_per_s + traffic.coordinator_out_bytes_per_s;
  resources.push_back(
      {"coordinator's processor",
       amount(traffic.coordinator_messages_per_s, "messages/s"),
       traffic.coordinator_messages_per_s * kMessageS +
           coordinator_bytes * kByteS +
           reports_per_s * options.replicas * kReplicaS});
  resources.push_back(
      {"coordinator's link, out",
       amount(traffic.coordinator_out_bytes_per_s, "B/s"),
       traffic.coordinator_out_bytes_per_s / kLinkBytesPerS});
  resources.push_back(
      {"coordinator's link, in",
       amount(traffic.coordinator_in_bytes_per_s, "B/s"),
       traffic.coordinator_in_bytes_per_s / kLinkBytesPerS});
  resources.push_back(
      {"coordinator's disk", amount(traffic.log_records_per_s, "syncs/s"),
       traffic.log_records_per_s * seconds(times_of(options).sync)});
  resources.push_back(
      {"a leader's processor",
       amount(traffic.leader_messages_per_s, "messages/s"),
       traffic.leader_messages_per_s * kMessageS +
           traffic.leader_bytes_per_s * kByteS});
  resources.push_back(
      {"the largest report the coordinator takes", amount(report_bytes, "B"),
       report_bytes / kReportBytesMax});
  std::stable_sort(
      resources.begin(), resources.end(),
      [](const auto& a, const auto& b) { return a.share > b.share; });
  result.traffic = traffic;
}

}  // namespace sherd::sim
