// SPDX-License-Identifier: Apache-2.0
#include "watch/status_view.h"

#include <vector>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "base/printable.h"
#include "format_text.h"
#include "terminal_text.h"
#include "train/progress_display.h"

namespace sherd::tools {
namespace {

using Json = nlohmann::json;

// A rank that waits for less than this makes progress.
constexpr double kStands_s = 1;
constexpr std::size_t kFailuresMax = 3;

template <typename T>
T at(const Json& json, const char* key) {
  return json.at(key).get<T>();
}

std::string place_line(const Json& status) {
  return "step " +
      std::to_string(at<std::int64_t>(status.at("canonical"), "step")) +
      " committed: " + at<std::string>(status, "stage") + ", epoch " +
      std::to_string(at<std::int64_t>(status.at("epoch"), "term")) + "." +
      std::to_string(at<std::int64_t>(status.at("epoch"), "number"));
}

std::string speed_line(const Json& status) {
  std::string line = format(
      "%.2f steps/s   last commit %s ago   %s samples",
      at<double>(status, "steps_per_s"),
      format_duration(at<double>(status, "since_commit_s")).c_str(),
      format_rate(at<double>(status, "samples")).c_str());
  const auto& effective = status.at("effective_training_time");
  if (!effective.is_null()) {
    line += format("   %.1f %% effective", effective.get<double>() * 100);
  }
  return line;
}

// A replica that has ended does nothing, whatever it reported last.
bool has_ended(const Json& replica) {
  const auto state = at<std::string>(replica, "state");
  return state == "done" || state == "left" || state == "lost";
}

std::string replica_line(const Json& replica) {
  const auto& held = replica.at("held");
  const auto state = at<std::string>(replica, "state") +
      (replica.at("slow").get<bool>() ? ", slow" : "");
  return format(
             "%8lld  %-14s %7s %9s %5lld  ",
             static_cast<long long>(at<std::int64_t>(replica, "replica")),
             printable(state, 14).c_str(),
             format_duration(at<double>(replica, "since_s")).c_str(),
             held.is_null()
                 ? "-"
                 : std::to_string(at<std::int64_t>(held, "step")).c_str(),
             static_cast<long long>(at<std::int64_t>(replica, "lag"))) +
      (has_ended(replica) ? "-" : at<std::string>(replica, "activity"));
}

// A line for each rank that stands still, saying for whom it waits.
void add_waits(const Json& replica, std::vector<std::string>& lines) {
  int rank = 0;
  for (const auto& one : replica.at("ranks")) {
    const double since_s = at<double>(one, "since_s");
    const bool waits = !one.at("waits_for").is_null() && since_s > kStands_s;
    if (waits || at<double>(one, "quiet_s") > 0) {
      lines.push_back(
          "replica " + std::to_string(at<std::int64_t>(replica, "replica")) +
          " rank " + std::to_string(rank) + " " + at<std::string>(one, "does") +
          ", since " + format_duration(since_s));
    }
    ++rank;
  }
}

std::vector<std::string> lines_of(
    const Json& status, const std::string& address) {
  std::vector<std::string> lines = {
      "coordinator " + address, place_line(status), speed_line(status)};
  const auto complaint = at<std::string>(status, "complaint");
  if (!complaint.empty()) {
    lines.push_back("it decides nothing: " + complaint);
  }
  lines.emplace_back();
  if (status.at("replicas").empty()) {
    lines.emplace_back("nothing runs: no replica has connected");
    return lines;
  }
  lines.emplace_back(" REPLICA  STATE            SINCE      STEP   LAG  DOES");
  std::vector<std::string> waits;
  for (const auto& replica : status.at("replicas")) {
    lines.push_back(replica_line(replica));
    add_waits(replica, waits);
  }
  lines.insert(lines.end(), waits.begin(), waits.end());
  std::size_t count = 0;
  for (const auto& failure : status.at("failures")) {
    if (++count > kFailuresMax) {
      break;
    }
    lines.push_back(
        "failure " + format_duration(at<double>(failure, "ago_s")) +
        " ago: " + at<std::string>(failure, "culprit") + ": " +
        at<std::string>(failure, "cause"));
  }
  return lines;
}

}  // namespace

std::string status_view(
    const std::string& json_text,
    const std::string& address,
    std::size_t columns) {
  try {
    return text_of_lines(lines_of(Json::parse(json_text), address), columns);
  } catch (const Json::exception& error) {
    throw Error(
        address + ": expected the status of a coordinator, found '" +
            printable(json_text, 60) + "' (" + error.what() + ")",
        ErrorCode::kUnavailable);
  }
}

}  // namespace sherd::tools
