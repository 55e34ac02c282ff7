// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/status.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/text.h"
#include "ft/coordinator/hang_report.h"
#include "net/authentication.h"

namespace sherd::ft {
namespace {

// Lineages are text, since most readers lose digits of such numbers. There are only enough digits
// to tell lineages apart: a process that fetches a state has to give all of them.
nlohmann::json json_of(const StateId& state) {
  return {
      {"step", state.step}, {"lineage", hex(state.lineage.high).substr(0, 8)}};
}

nlohmann::json json_of(const RankActivity& one) {
  const auto& progress = one.progress;
  const auto place = progress.place.value_or(RingPosition());
  return {
      {"rank", progress.rank},
      {"activity", text_of(progress.activity)},
      {"since_s", seconds(one.standing)},
      {"quiet_s", seconds(silence_of(progress))},
      {"waits_for",
       progress.waits_for ? nlohmann::json(*progress.waits_for)
                          : nlohmann::json()},
      {"to_read", progress.to_read},
      {"bucket", place.bucket},
      {"unit", place.unit},
      {"slices_done", place.slices_done},
      {"slices", place.slices},
      {"does", text_of(one)}};
}

nlohmann::json json_of(const ReplicaStatus& one) {
  auto ranks = nlohmann::json::array();
  for (const auto& rank : one.ranks) {
    ranks.push_back(json_of(rank));
  }
  return {
      {"replica", one.replica},
      {"state", one.state},
      {"slow", one.slow},
      {"held", one.held ? json_of(*one.held) : nlohmann::json()},
      {"lag", one.lag},
      {"activity", one.activity},
      {"address", one.address},
      {"since_s", one.since_s},
      {"ranks", ranks}};
}

// Escapes the value of a label.
std::string label_escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') {
      escaped += '\\';
    }
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

std::string metric_head(
    const std::string& name, const char* help, const char* type) {
  return str(
      "# HELP sherd_", name, " ", help, "\n# TYPE sherd_", name, " ", type,
      "\n");
}

template <typename Value>
std::string metric(
    const std::string& name,
    const char* help,
    const Value& value,
    const char* type = "gauge") {
  return metric_head(name, help, type) + str("sherd_", name, " ", value, "\n");
}

template <typename ValueOf>
std::string metric_of_replicas(
    const char* name,
    const char* help,
    const std::vector<ReplicaStatus>& replicas,
    const ValueOf& value_of) {
  auto text = metric_head(name, help, "gauge");
  for (const auto& one : replicas) {
    text +=
        str("sherd_", name, "{replica=\"", one.replica, "\",state=\"",
            label_escaped(one.state), "\"} ", value_of(one), "\n");
  }
  return text;
}

}  // namespace

std::string run_name(std::uint64_t run) {
  const auto code = net::message_code("sherd run", hex(run));
  std::uint32_t digits = 0;
  std::memcpy(&digits, code.data(), sizeof digits);
  return hex(digits).substr(8);
}

std::string json_of(const RunStatus& status) {
  nlohmann::json json = {
      {"run", run_name(status.run)},
      {"up_s", status.up_s},
      {"slept_s", status.slept_s},
      {"complaint", status.complaint},
      {"term", status.term},
      {"epoch", {{"term", status.epoch.term}, {"number", status.epoch.number}}},
      {"stage", status.stage},
      {"canonical", json_of(status.canonical)},
      {"samples", status.samples},
      {"since_commit_s", status.since_commit_s},
      {"steps_per_s", status.steps_per_s},
      {"longest_gap_s", status.longest_gap_s},
      {"effective_training_time",
       status.effective ? nlohmann::json(*status.effective) : nlohmann::json()},
      {"replicas", nlohmann::json::array()},
      {"failures", nlohmann::json::array()},
      {"counters", status.counters}};
  for (const auto& one : status.replicas) {
    json["replicas"].push_back(json_of(one));
  }
  for (const auto& one : status.failures) {
    json["failures"].push_back(
        {{"ago_s", one.ago_s}, {"culprit", one.culprit}, {"cause", one.cause}});
  }
  // Texts from other processes need not be UTF-8.
  return json.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) +
      "\n";
}

std::string prometheus_of(const RunStatus& status) {
  auto text = metric("up_seconds", "Age of the coordinator", status.up_s);
  text += metric(
      "deciding", "0: the log cannot be written",
      status.complaint.empty() ? 1 : 0);
  text += metric("term", "Lives of the coordinator", status.term);
  text += metric("epoch", "Lists of members", status.epoch.number);
  text +=
      metric("committed_step", "Last step committed", status.canonical.step);
  text +=
      metric("committed_samples", "Samples of committed steps", status.samples);
  text += metric(
      "seconds_since_commit", "Since the last commit", status.since_commit_s);
  text +=
      metric("steps_per_second", "Over the last commits", status.steps_per_s);
  text += metric(
      "commit_gap_seconds_longest", "Between two commits",
      status.longest_gap_s);
  if (status.effective) {
    text += metric(
        "effective_training_time_ratio",
        "Share of time in which steps were committed at the usual pace",
        *status.effective);
  }
  for (const auto& [name, value] : status.counters) {
    text += metric(name + "_total", "Since the start", value, "counter");
  }
  return text +
      metric_of_replicas(
             "replica_lag_steps", "Behind the last commit", status.replicas,
             [](const ReplicaStatus& one) { return one.lag; }) +
      metric_of_replicas(
             "replica_slow", "1: slower than it used to be", status.replicas,
             [](const ReplicaStatus& one) { return one.slow ? 1 : 0; });
}

}  // namespace sherd::ft
