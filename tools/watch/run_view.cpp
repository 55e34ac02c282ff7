// SPDX-License-Identifier: Apache-2.0
#include "watch/run_view.h"

#include <algorithm>
#include <optional>
#include "base/printable.h"
#include "format_text.h"
#include "terminal_text.h"
#include "train/progress_display.h"

namespace sherd::tools {
namespace {

constexpr std::size_t kMeanSteps = 10;
constexpr double kStragglerFactor = 1.2;
constexpr double kQuietSteps = 20;
constexpr double kQuietMin_s = 30;

double mean_step_s(const RunState& run) {
  const auto count = std::min(run.records.size(), kMeanSteps);
  double sum = 0;
  for (auto i = run.records.size() - count; i < run.records.size(); ++i) {
    sum += run.records[i].step_s;
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

std::optional<StepMetrics> last_validated(const RunState& run) {
  for (auto at = run.records.rbegin(); at != run.records.rend(); ++at) {
    if (at->val_loss.has_value()) {
      return *at;
    }
  }
  return std::nullopt;
}

std::string place_line(const RunState& run) {
  const auto step = run.records.empty() ? 0 : run.records.back().step;
  std::string line = "step " + std::to_string(step);
  if (run.steps > 0) {
    line += " of " + std::to_string(run.steps);
  }
  return line + ": " + stage_of(run);
}

std::string loss_line(const RunState& run) {
  const auto& last = run.records.back();
  std::string line = format("loss %.4f", last.loss);
  if (const auto validated = last_validated(run)) {
    line += format(
        "   validation %.4f (step %lld)", *validated->val_loss,
        static_cast<long long>(validated->step));
  }
  return line +
      format("   rate %.3g   gradient norm %.3g", last.lr, last.grad_norm);
}

std::string speed_line(const RunState& run) {
  const auto& last = run.records.back();
  const double step_s = mean_step_s(run);
  std::string line = format_rate(last.tokens_per_s) + " tokens/s   " +
      format("%.3f s a step", step_s);
  if (last.mfu.has_value()) {
    line += format("   MFU %.1f %%", *last.mfu * 100);
  }
  if (run.steps > last.step) {
    line += "   " +
        format_duration(static_cast<double>(run.steps - last.step) * step_s) +
        " left";
  }
  return line;
}

std::string row_line(const RankRow& row) {
  return format(
             "%8s %9lld %10.3f s %9.3f s %11s", row.name.c_str(),
             static_cast<long long>(row.step), row.mean.step_s, row.mean.busy_s,
             format_memory(row.mean.rss_bytes).c_str()) +
      (row.straggler     ? "  straggler"
           : row.slowest ? "  slowest"
                         : "");
}

void mark_slowest(std::vector<RankRow>& rows) {
  if (rows.size() < 2) {
    return;
  }
  const auto less_busy = [](const RankRow& a, const RankRow& b) {
    return a.mean.busy_s < b.mean.busy_s;
  };
  const auto slowest = std::max_element(rows.begin(), rows.end(), less_busy);
  slowest->slowest = true;
  std::vector<double> others;
  for (const auto& row : rows) {
    if (!row.slowest) {
      others.push_back(row.mean.busy_s);
    }
  }
  std::ranges::sort(others);
  const auto median =
      (others[(others.size() - 1) / 2] + others[others.size() / 2]) / 2;
  slowest->straggler =
      median > 0 && slowest->mean.busy_s >= kStragglerFactor * median;
}

// The busiest `count` rows, in their original order.
std::vector<RankRow> busiest(std::vector<RankRow> rows, std::size_t count) {
  std::vector<double> busy;
  for (const auto& row : rows) {
    busy.push_back(row.mean.busy_s);
  }
  std::sort(busy.rbegin(), busy.rend());
  const double least = count < busy.size() ? busy[count] : -1;
  std::erase_if(
      rows, [&](const RankRow& row) { return row.mean.busy_s <= least; });
  return rows;
}

// How far a run is; in two lines if it is one of several.
void add_lines(
    const RunState& run, bool one_of_several, std::vector<std::string>& lines) {
  if (one_of_several) {
    lines.push_back(
        run.name.substr(run.name.rfind('/') + 1) + "   " + place_line(run));
  } else {
    lines.push_back(run.name);
    lines.push_back(place_line(run));
  }
  if (run.records.empty()) {
    return;
  }
  if (one_of_several) {
    lines.push_back(
        format("  loss %.4f   ", run.records.back().loss) + speed_line(run));
  } else {
    lines.push_back(loss_line(run));
    lines.push_back(
        speed_line(run) + "   " +
        format_rate(static_cast<double>(run.records.back().tokens)) +
        " tokens seen");
  }
}

}  // namespace

std::string stage_of(const RunState& run) {
  if (run.records.empty()) {
    return "nothing has been written yet";
  }
  if (run.steps > 0 && run.records.back().step >= run.steps) {
    return "finished " + format_duration(run.age_s) + " ago";
  }
  const double step_s = mean_step_s(run);
  if (run.age_s <= std::max(kQuietMin_s, kQuietSteps * step_s)) {
    return "running, the last step " + format("%.0f s ago", run.age_s);
  }
  return "nothing runs, the last step was " + format_duration(run.age_s) +
      " ago";
}

std::vector<RankRow> rank_rows(const RunState& run) {
  std::vector<RankRow> rows;
  std::size_t steps = 0;
  for (auto at = run.records.rbegin();
       at != run.records.rend() && steps < kMeanSteps; ++at, ++steps) {
    if (at->ranks.size() != run.records.back().ranks.size()) {
      break;
    }
    rows.resize(at->ranks.size());
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      rows[rank].mean.step_s += at->ranks[rank].step_s;
      rows[rank].mean.busy_s += at->ranks[rank].busy_s;
    }
  }
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    auto& row = rows[rank];
    row.name = run.ranks + std::to_string(rank);
    row.step = run.records.back().step;
    row.mean.step_s /= static_cast<double>(steps);
    row.mean.busy_s /= static_cast<double>(steps);
    row.mean.rss_bytes = run.records.back().ranks[rank].rss_bytes;
  }
  mark_slowest(rows);
  return rows;
}

std::string run_view(
    const std::vector<RunState>& runs, std::size_t columns, std::size_t rows) {
  std::vector<std::string> lines;
  std::vector<RankRow> table;
  for (const auto& run : runs) {
    add_lines(run, runs.size() > 1, lines);
    const auto of_run = rank_rows(run);
    table.insert(table.end(), of_run.begin(), of_run.end());
  }
  if (!table.empty()) {
    lines.emplace_back();
    lines.emplace_back(
        "    RANK      STEP    STEP TIME        BUSY      MEMORY");
    const auto room = rows > lines.size() + 2 ? rows - lines.size() - 2 : 1;
    const auto shown = busiest(table, room);
    for (const auto& row : shown) {
      lines.push_back(row_line(row));
    }
    if (shown.size() < table.size()) {
      lines.push_back(
          "and " + std::to_string(table.size() - shown.size()) +
          " ranks that are less busy");
    }
  }
  return text_of_lines(lines, columns);
}

}  // namespace sherd::tools
