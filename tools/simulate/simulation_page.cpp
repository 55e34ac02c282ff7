// SPDX-License-Identifier: Apache-2.0
#include "simulate/simulation_reports.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <sherd/base/error.h>
#include "base/printable.h"
#include "format_text.h"
#include "train/plot.h"

namespace sherd::tools {
namespace {

using sim::SimulationOptions;
using Points = std::vector<std::pair<double, double>>;

constexpr double kPercent = 100;
constexpr double kMinutesPerDay = 1440;

constexpr const char* kStyle = R"(
:root { --sherd: #0a66c2; --torchft: #b35900; --restart: #6e4fbf; }
@media (prefers-color-scheme: dark) { :root { --sherd: #58a6ff;
  --torchft: #ff9e4a; --restart: #b49aff; } }
h2 { font-size: 16px; margin: 28px 0 4px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 14px 4px 0; vertical-align: top;
  border-bottom: 1px solid var(--grid); }
td.n, th.n { text-align: right; white-space: nowrap; }
.sherd { --line: var(--sherd); } .torchft { --line: var(--torchft); }
.restart { --line: var(--restart); }
)";

// Few failures and few runs, so that all points together take a minute.
constexpr int kFailures = 150;
constexpr double kCheckpoints = 200'000;
constexpr int kRuns = 4;

int runs_of(const SimulationOptions& options) {
  return options.arrivals == sim::Arrivals::kEven
      ? 1
      : std::min(options.runs, kRuns);
}

SimulationOptions quick(SimulationOptions options, sim::FailurePolicy policy) {
  options.policy = policy;
  options.steps.reset();
  options.days = std::min(
      kFailures * mtbf_min_of(options) / kMinutesPerDay, sim::kDaysMax);
  if (options.checkpoint_min > 0) {
    options.days = std::min(
        options.days, kCheckpoints * options.checkpoint_min / kMinutesPerDay);
  }
  options.runs = runs_of(options);
  return options;
}

// Returns nothing for options beyond the simulator's limits, within which the user's own options are.
std::optional<sim::SimulationResult> simulated(
    const SimulationOptions& options) {
  try {
    return sim::simulate(options);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Effective training time of some policies, for options that depend on x; "" if none can be
// simulated.
std::string plot_of(
    const char* title,
    const char* x_name,
    const std::vector<double>& xs,
    const std::function<SimulationOptions(double)>& options_at,
    std::span<const sim::FailurePolicy> policies = kPolicies) {
  Plot plot{.title = title, .x_high = xs.back(), .x_name = x_name};
  for (const auto policy : policies) {
    Points points;
    for (const double x : xs) {
      if (const auto result = simulated(quick(options_at(x), policy))) {
        points.emplace_back(x, result->effective_training_time * kPercent);
      }
    }
    if (points.empty()) {
      continue;
    }
    plot.series.push_back(
        {.name = name_of(policy),
         .css_class = name_of(policy),
         .points = std::move(points),
         .dots = true});
  }
  return plot.series.empty() ? "" : plot_html(plot);
}

std::vector<double> scaled(const std::vector<double>& factors, double value) {
  std::vector<double> result;
  for (const double factor : factors) {
    result.push_back(factor * value);
  }
  return result;
}

std::string size_plot(const SimulationOptions& options) {
  // Each replica has whole hosts, with the failures that such hosts have.
  std::vector<double> gpus;
  for (const double factor : {0.0625, 0.125, 0.25, 0.5, 1.0, 1.5}) {
    const auto each = std::clamp<std::int64_t>(
        std::llround(
            factor * static_cast<double>(options.gpus) / options.replicas),
        1, sim::kReplicaGpusMax);
    gpus.push_back(static_cast<double>(each * options.replicas));
  }
  gpus.erase(std::unique(gpus.begin(), gpus.end()), gpus.end());
  const double failures_per_gpu =
      1 / (mtbf_min_of(options) * static_cast<double>(options.gpus));
  return plot_of(
      "Effective training time, %, by size", "GPUs", gpus, [&](double count) {
        auto at = options;
        at.gpus = std::llround(count);
        at.mtbf_min = 1 / (failures_per_gpu * count);
        return at;
      });
}

std::string failure_plot(const SimulationOptions& options) {
  const auto times = scaled({0.25, 0.5, 1, 2, 4}, mtbf_min_of(options));
  return plot_of(
      "Effective training time, %, by minutes between failures", "minutes",
      times, [&](double minutes) {
        auto at = options;
        at.mtbf_min = minutes;
        return at;
      });
}

std::string stall_plot(const SimulationOptions& options) {
  // Under kRestart all replicas stand still until the restart anyway.
  constexpr std::array kStalling = {
      sim::FailurePolicy::kSherd, sim::FailurePolicy::kTorchft};
  return plot_of(
      "Effective training time, %, by minutes that all stand still after a "
      "failure",
      "minutes", {0, 0.1, 0.5, 1, 2, 3, 5},
      [&](double minutes) {
        auto at = options;
        at.stall_min = minutes;
        return at;
      },
      kStalling);
}

std::string spares_plot(const SimulationOptions& options) {
  // From half of the average number of hosts in repair up to twice as many.
  const double repaired =
      std::max(options.repair_h * 60 / mtbf_min_of(options), 2.0);
  std::vector<double> spares = {0};
  for (const double factor : {0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0}) {
    spares.push_back(std::ceil(factor * repaired));
  }
  spares.erase(std::unique(spares.begin(), spares.end()), spares.end());
  return plot_of(
      "Effective training time, %, by spare hosts", "spares", spares,
      [&](double count) {
        auto at = options;
        at.spares = static_cast<int>(count);
        return at;
      });
}

// `numbers` says whether all cells but the first are numbers.
std::string row(
    const std::vector<std::string>& cells,
    const char* tag,
    bool numbers = true) {
  std::string html = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    html += format("<%s%s>", tag, numbers && i > 0 ? " class='n'" : "") +
        html_escaped(cells[i]) + format("</%s>", tag);
  }
  return html + "</tr>\n";
}

std::string result_table(const std::vector<sim::SimulationResult>& all) {
  std::string html = "<div class='wide'><table>" +
      row({"policy", "effective", "95 % interval", "stalled", "degraded",
           "steps", "discarded"},
          "th");
  for (const auto& one : all) {
    html +=
        row({name_of(one.policy),
             format("%.2f %%", one.effective_training_time * kPercent),
             format("%.2f - %.2f", one.low * kPercent, one.high * kPercent),
             format("%.2f %%", one.stall_share * kPercent),
             format("%.2f %%", one.degraded_share * kPercent),
             format("%.0f", one.commits), format("%.0f", one.discarded_steps)},
            "td");
  }
  return html + "</table></div>\n";
}

std::string resource_table(const sim::SimulationResult& one) {
  if (one.resources.empty()) {
    return "";
  }
  std::string html = "<h2>What control uses</h2><div class='wide'><table>" +
      row({"of", "amount", "used"}, "th");
  for (const auto& use : one.resources) {
    html += row(
        {use.name, use.amount, format("%.3f %%", use.share * kPercent)}, "td");
  }
  return html + "</table></div>\n";
}

std::string assumption_table(const std::vector<sim::SimulationResult>& all) {
  std::string html = "<h2>Assumptions</h2><div class='wide'><table>" +
      row({"policy", "what", "value", "source"}, "th", false);
  for (const auto& one : all) {
    for (const auto& line : one.assumptions) {
      html +=
          row({name_of(one.policy), line.name, line.value, line.source}, "td",
              false);
    }
  }
  return html + "</table></div>\n";
}

}  // namespace

std::string simulation_page(
    const SimulationOptions& options,
    const std::vector<sim::SimulationResult>& all) {
  std::string html = format(
      "<h1>%lld GPUs in %d replicas, a failure each %.3g min</h1>\n",
      static_cast<long long>(options.gpus), options.replicas,
      mtbf_min_of(options));
  html +=
      "<p>Simulated by sherd: work done, as the share of what all replicas "
      "would do without failures.</p>\n";
  html += result_table(all);
  html += spares_plot(options) + failure_plot(options) + size_plot(options) +
      stall_plot(options);
  html += format(
      "<p>Points of the plots are means of %d runs of %d failures, %.0f "
      "checkpoints or %.0f days, whichever is shortest; the other options are "
      "those of the table. What is larger or longer than the simulator takes "
      "has no point.</p>\n",
      runs_of(options), kFailures, kCheckpoints, sim::kDaysMax);
  for (const auto& one : all) {
    html += resource_table(one);
  }
  html += assumption_table(all);
  return page_html({.title = "sherd simulate", .style = kStyle, .body = html});
}

}  // namespace sherd::tools
