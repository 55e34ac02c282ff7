// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/status.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/hex.h"
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

class PrometheusText {
 public:
  template <typename Value>
  void add(
      const std::string& name,
      const char* type,
      const char* help,
      const Value& value) {
    head(name, type, help);
    text_ += str("sherd_", name, " ", value, "\n");
  }
  void head(const std::string& name, const char* type, const char* help) {
    text_ +=
        str("# HELP sherd_", name, " ", help, "\n# TYPE sherd_", name, " ",
            type, "\n");
  }
  template <typename Value>
  void of_replica(
      const std::string& name, const ReplicaStatus& one, const Value& value) {
    text_ +=
        str("sherd_", name, "{replica=\"", one.replica, "\",state=\"",
            label_escaped(one.state), "\"} ", value, "\n");
  }
  std::string text() const { return text_; }

 private:
  std::string text_;
};

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
  PrometheusText metrics;
  metrics.add("up_seconds", "gauge", "Age of the coordinator", status.up_s);
  metrics.add(
      "deciding", "gauge", "0: the log cannot be written",
      status.complaint.empty() ? 1 : 0);
  metrics.add("term", "gauge", "Lives of the coordinator", status.term);
  metrics.add("epoch", "gauge", "Lists of members", status.epoch.number);
  metrics.add(
      "committed_step", "gauge", "Last step committed", status.canonical.step);
  metrics.add(
      "committed_samples", "gauge", "Samples of committed steps",
      status.samples);
  metrics.add(
      "seconds_since_commit", "gauge", "Since the last commit",
      status.since_commit_s);
  metrics.add(
      "steps_per_second", "gauge", "Over the last commits", status.steps_per_s);
  metrics.add(
      "commit_gap_seconds_longest", "gauge", "Between two commits",
      status.longest_gap_s);
  if (status.effective) {
    metrics.add(
        "effective_training_time_ratio", "gauge",
        "Share of time in which steps were committed at the usual pace",
        *status.effective);
  }
  for (const auto& [name, value] : status.counters) {
    metrics.add(name + "_total", "counter", "Since the start", value);
  }
  metrics.head("replica_lag_steps", "gauge", "Behind the last commit");
  for (const auto& one : status.replicas) {
    metrics.of_replica("replica_lag_steps", one, one.lag);
  }
  metrics.head("replica_slow", "gauge", "1: slower than it used to be");
  for (const auto& one : status.replicas) {
    metrics.of_replica("replica_slow", one, one.slow ? 1 : 0);
  }
  return metrics.text();
}

}  // namespace sherd::ft
