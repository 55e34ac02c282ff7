// SPDX-License-Identifier: Apache-2.0
#include "simulate/simulation_reports.h"

#include <algorithm>
#include <cstddef>

#include "base/text.h"
#include "format_text.h"

namespace sherd::tools {
namespace {

constexpr double kInPercent = 100;

std::string policy_line(const sim::SimulationResult& result) {
  return format(
      "%-8s  %6.2f %%  %6.2f - %6.2f  %8.2f %%  %8.2f %%  %11.0f  %9.0f\n",
      name_of(result.policy), result.effective_training_time * kInPercent,
      result.low * kInPercent, result.high * kInPercent,
      result.stall_share * kInPercent, result.degraded_share * kInPercent,
      result.commits, result.discarded_steps);
}

std::string given_up_line(const sim::SimulationResult& one) {
  const auto given_up = one.replicas_given_up;
  return given_up > 0
      ? format(
            "%s: %.3g replicas a run are given up, since their restarts are "
            "spent (--max-restarts, --restart-window).\n",
            name_of(one.policy), given_up)
      : "";
}

std::string control_lines(const sim::SimulationResult& result) {
  if (!result.traffic || result.resources.empty()) {
    return "";
  }
  std::string text =
      "\nWhat control uses, of a core, of 100 Gbit/s, of one disk and of the "
      "largest message:\n";
  for (const auto& one : result.resources) {
    text += format(
        "  %-42s %-18s %7.3f %%\n", one.name.c_str(), one.amount.c_str(),
        one.share * kInPercent);
  }
  const auto& first = result.resources.front();
  text += "  The first to be used up is " + first.name +
      (first.share > 1 ? ", and there is not enough of it.\n" : ".\n");
  text += format(
      "  The log grows by %.2f MB a day.\n",
      result.traffic->log_bytes_per_day / 1e6);
  return text;
}

std::string assumption_lines(const std::vector<sim::SimulationResult>& all) {
  std::vector<sim::SimulationResult::Assumption> lines;
  std::size_t names = 0;
  std::size_t values = 0;
  for (const auto& result : all) {
    for (const auto& one : result.assumptions) {
      const bool known =
          std::any_of(lines.begin(), lines.end(), [&](const auto& line) {
            return line.name == one.name && line.value == one.value;
          });
      if (!known) {
        lines.push_back(one);
        names = std::max(names, one.name.size());
        values = std::max(values, one.value.size());
      }
    }
  }
  std::string text = "\nAssumptions:\n";
  for (const auto& one : lines) {
    text += "  " + padded(one.name, names) + "  " + padded(one.value, values) +
        "  " + one.source + "\n";
  }
  return text;
}

}  // namespace

std::string simulation_table(const std::vector<sim::SimulationResult>& all) {
  const auto& first = all.front();
  std::string text = format(
      "%d run%s of %.4g days with %.0f failures each on average.\n\n",
      first.runs, first.runs == 1 ? "" : "s", first.simulated_days,
      first.failures);
  text +=
      "policy    effective  95 % interval    stalled  degraded  "
      "  commits  discarded\n";
  for (const auto& one : all) {
    text += policy_line(one);
  }
  for (const auto& one : all) {
    text += given_up_line(one);
  }
  for (const auto& one : all) {
    text += control_lines(one);
  }
  return text + assumption_lines(all);
}

}  // namespace sherd::tools
