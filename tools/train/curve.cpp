// SPDX-License-Identifier: Apache-2.0
#include "train/curve.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <nlohmann/json.hpp>
#include "base/printable.h"
#include "train/plot.h"

namespace sherd::tools {
namespace {

constexpr std::size_t kFirstPageSteps = 10;
constexpr double kPageAgeMax_s = 10;
constexpr std::size_t kPointsMax = 1000;
constexpr double kSmoothingParts = 30;
constexpr double kEarlyParts = 8;
constexpr double kWindowMin = 3;

constexpr const char* kStyle = R"(
:root { --train: #0a66c2; --val: #c4540a; }
@media (prefers-color-scheme: dark) {
  :root { --train: #58a6ff; --val: #ff9e4a; } }
#values { position: sticky; top: 0; z-index: 1; padding: 6px 0;
  background: var(--page); color: var(--ink); min-height: 1.5em;
  font-variant-numeric: tabular-nums; }
.train { --line: var(--train); } .raw { --line: var(--train); --fade: .35; }
.val { --line: var(--val); }
)";

// Finds the step nearest to the pointer; POINTS and LAST are defined before it.
constexpr const char* kScript = R"(
const plots = document.querySelectorAll(".plot");
const values = document.getElementById("values");
function show(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const step = (event.clientX - box.left) / box.width * LAST;
  let best = POINTS[0];
  for (const p of POINTS)
    if (Math.abs(p.step - step) < Math.abs(best.step - step)) best = p;
  if (!best) return;
  for (const rule of document.querySelectorAll(".rule")) {
    rule.style.left = best.step / LAST * 100 + "%";
    rule.style.display = "block";
  }
  const norm = best.norm == null ? "none" : best.norm.toPrecision(3);
  values.textContent = `step ${best.step}: loss ${best.loss.toFixed(4)}` +
    `, smoothed ${best.smooth.toFixed(4)}` +
    (best.val == null ? "" : `, validation ${best.val.toFixed(4)}`) +
    `, rate ${best.lr.toPrecision(3)}, norm ${norm}` +
    `, ${Math.round(best.speed)} tokens/s`;
}
for (const plot of plots) {
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show);
}
)";

// The values of a step that are drawn.
struct Point {
  const StepMetrics* record;
  double smooth;  // The smoothed loss.
};

std::optional<double> validation(const StepMetrics& record) {
  return record.val_loss.has_value() && std::isfinite(*record.val_loss)
      ? record.val_loss
      : std::nullopt;
}

// The points with a finite loss: one in so many, the last, and one in so many of those that were
// validated.
std::vector<Point> points_of(const std::vector<StepMetrics>& records) {
  std::vector<const StepMetrics*> finite;
  std::vector<double> losses;
  for (const auto& record : records) {
    if (std::isfinite(record.loss)) {
      finite.push_back(&record);
      losses.push_back(record.loss);
    }
  }
  const auto smooth = smoothed(losses);
  const auto validations = static_cast<std::size_t>(std::count_if(
      finite.begin(), finite.end(),
      [](const auto* record) { return validation(*record).has_value(); }));
  const std::size_t stride = finite.size() / kPointsMax + 1;
  const std::size_t validation_stride = validations / kPointsMax + 1;
  std::size_t validated = 0;  // How many points before this one were.
  std::vector<Point> points;
  for (std::size_t i = 0; i < finite.size(); ++i) {
    const bool has_validation = validation(*finite[i]).has_value();
    if (i % stride == 0 || i + 1 == finite.size() ||
        (has_validation && validated % validation_stride == 0)) {
      points.push_back({finite[i], smooth[i]});
    }
    validated += has_validation ? 1 : 0;
  }
  return points;
}

template <typename Value>
Series series_of(
    const char* name,
    const char* css_class,
    const std::vector<Point>& points,
    const Value& value) {
  Series series{.name = name, .css_class = css_class};
  for (const auto& point : points) {
    const std::optional<double> y = value(point);
    if (y.has_value() && std::isfinite(*y)) {
      series.points.emplace_back(point.record->step, *y);
    }
  }
  return series;
}

std::string plots_html(const std::vector<Point>& points, double last) {
  auto val = series_of("validation", "val", points, [](const Point& p) {
    return validation(*p.record);
  });
  val.dots = true;
  return plot_html(
             {.title = "Loss (nats per token)",
              .x_high = last,
              .series =
                  {series_of(
                       "each step", "raw", points,
                       [](const Point& p) { return p.record->loss; }),
                   series_of(
                       "smoothed", "train", points,
                       [](const Point& p) { return p.smooth; }),
                   std::move(val)}}) +
      plot_html(
             {.title = "Learning rate",
              .x_high = last,
              .series = {series_of(
                  "", "train", points,
                  [](const Point& p) { return p.record->lr; })}}) +
      plot_html(
             {.title = "Gradient norm, before clipping",
              .x_high = last,
              .series = {series_of("", "train", points, [](const Point& p) {
                return p.record->grad_norm;
              })}});
}

nlohmann::json points_json(const std::vector<Point>& points) {
  auto json = nlohmann::json::array();
  for (const auto& point : points) {
    const auto& record = *point.record;
    const auto val = validation(record);
    json.push_back(
        {{"step", record.step},
         {"loss", record.loss},
         {"smooth", point.smooth},
         {"val", val ? nlohmann::json(*val) : nlohmann::json()},
         {"lr", record.lr},
         {"norm", record.grad_norm},
         {"speed", record.tokens_per_s}});
  }
  return json;
}

}  // namespace

std::vector<double> smoothed(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double sum = 0;
  double weight = 0;
  std::vector<double> result;
  for (const double value : values) {
    const auto before = static_cast<double>(result.size());
    const double window = std::max(
        kWindowMin, std::min(count / kSmoothingParts, before / kEarlyParts));
    const double keep = 1 - 1 / window;
    sum = keep * sum + value;
    weight = keep * weight + 1;
    result.push_back(sum / weight);
  }
  return result;
}

bool curve_is_due(std::size_t records, bool validated, double age_s) {
  return validated || records == kFirstPageSteps ||
      (records > kFirstPageSteps && age_s >= kPageAgeMax_s);
}

std::string curve_html(
    const std::string& title,
    const std::vector<std::string>& facts,
    const std::vector<StepMetrics>& records) {
  const auto points = points_of(records);
  const double last =
      points.empty() ? 1 : static_cast<double>(points.back().record->step);
  std::string body = "<h1>" + html_escaped(title) + "</h1>\n";
  for (const auto& fact : facts) {
    body += "<p>" + html_escaped(fact) + "</p>\n";
  }
  body += "<p id='values'>Move over a curve to see its values.</p>\n" +
      plots_html(points, last) +
      "<script>\nconst POINTS = " + points_json(points).dump() +
      ";\nconst LAST = " + nlohmann::json(last).dump() + ";" + kScript +
      "</script>\n";
  return page_html({.title = title, .style = kStyle, .body = body});
}

}  // namespace sherd::tools
