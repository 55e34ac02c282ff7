// SPDX-License-Identifier: Apache-2.0
//
// What controlling a run sends and writes, and which share of the machines' resources that is.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ft/replica/rank_messages.h"
#include "ft/wire/codec.h"
#include "sim/runs.h"

namespace sherd::sim {
namespace {

// The resources of the coordinator's host and of a leader's, and the cost of a message;
// assumptions.cpp has the same numbers for people. The coordinator looks at all replicas for each
// report.
constexpr double kLinkBytesPerS = 100e9 / 8;
constexpr double kMessageS = 5e-6;
constexpr double kByteS = 1e-9;
constexpr double kReplicaS = 0.15e-6;
// The coordinator refuses larger reports.
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

// A heartbeat is a report that repeats the last one; its answer says that nothing is new.
double heartbeats(const RunOutcome& run) {
  return run.replica_s / seconds(ft::kHeartbeatInterval);
}

double reports_per_s(const RunOutcome& run) {
  return (static_cast<double>(run.traffic->reports.messages) +
          heartbeats(run)) /
      run.elapsed_s;
}

SimulationResult::ControlTraffic traffic_of(
    const SimulationOptions& options, const RunOutcome& run) {
  const auto& sent = *run.traffic;
  const double s = run.elapsed_s;
  const auto per_s = [&](const Flow& flow, std::uint64_t heartbeat_bytes) {
    return (static_cast<double>(flow.bytes) +
            heartbeats(run) * static_cast<double>(heartbeat_bytes)) /
        s;
  };
  SimulationResult::ControlTraffic traffic;
  traffic.coordinator_messages_per_s = reports_per_s(run) +
      (static_cast<double>(sent.views.messages) + heartbeats(run)) / s;
  traffic.coordinator_in_bytes_per_s =
      per_s(sent.reports, sent.heartbeat_bytes);
  traffic.coordinator_out_bytes_per_s = per_s(sent.views, sent.answer_bytes);
  const auto count = options.gpus / options.replicas;
  const auto ranks = static_cast<double>(count);
  const auto step = rank_flow_of_step(options.replicas);
  const double heartbeats_per_s =
      1 / seconds(ft::rank_heartbeat_interval(static_cast<int>(count)));
  const double steps_per_s = static_cast<double>(run.commits) / s;
  traffic.leader_messages_per_s = ranks *
          (static_cast<double>(step.messages) * steps_per_s +
           heartbeats_per_s) +
      traffic.coordinator_messages_per_s / options.replicas;
  traffic.leader_bytes_per_s = ranks *
          (static_cast<double>(step.bytes) * steps_per_s +
           heartbeats_per_s * static_cast<double>(rank_heartbeat_bytes())) +
      (traffic.coordinator_in_bytes_per_s +
       traffic.coordinator_out_bytes_per_s) /
          options.replicas;
  traffic.log_records_per_s = static_cast<double>(sent.records.messages) / s;
  traffic.log_bytes_per_day =
      static_cast<double>(sent.records.bytes) / s * kSecondsPerDay;
  return traffic;
}

std::vector<SimulationResult::ResourceUse> resources_of(
    const SimulationOptions& options,
    const RunOutcome& run,
    const SimulationResult::ControlTraffic& traffic) {
  const auto out = traffic.coordinator_out_bytes_per_s;
  const auto in = traffic.coordinator_in_bytes_per_s;
  const auto report_bytes = static_cast<double>(run.traffic->report_bytes_max);
  std::vector<SimulationResult::ResourceUse> resources = {
      {"coordinator's processor",
       amount(traffic.coordinator_messages_per_s, "messages/s"),
       traffic.coordinator_messages_per_s * kMessageS + (in + out) * kByteS +
           reports_per_s(run) * options.replicas * kReplicaS},
      {"coordinator's link, out", amount(out, "B/s"), out / kLinkBytesPerS},
      {"coordinator's link, in", amount(in, "B/s"), in / kLinkBytesPerS},
      {"coordinator's disk", amount(traffic.log_records_per_s, "syncs/s"),
       traffic.log_records_per_s * seconds(times_of(options).sync)},
      {"a leader's processor",
       amount(traffic.leader_messages_per_s, "messages/s"),
       traffic.leader_messages_per_s * kMessageS +
           traffic.leader_bytes_per_s * kByteS},
      {"the largest report the coordinator takes", amount(report_bytes, "B"),
       report_bytes / kReportBytesMax}};
  std::stable_sort(
      resources.begin(), resources.end(),
      [](const auto& a, const auto& b) { return a.share > b.share; });
  return resources;
}

}  // namespace

void add_traffic(
    const SimulationOptions& options,
    const RunOutcome& run,
    SimulationResult& result) {
  if (run.traffic) {
    result.traffic = traffic_of(options, run);
    result.resources = resources_of(options, run, *result.traffic);
  }
}

}  // namespace sherd::sim
