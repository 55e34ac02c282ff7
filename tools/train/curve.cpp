// SPDX-License-Identifier: Apache-2.0
#include "train/curve.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

namespace sherd::tools {
namespace {

constexpr double kWidth = 960;
constexpr double kHeight = 460;
constexpr double kLeft = 64;
constexpr double kRight = 20;
constexpr double kTop = 16;
constexpr double kBottom = 48;
constexpr int kXTicks = 8;
constexpr int kYTicks = 8;

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1f2328; --dim: #656d76;
  --grid: #d8dee4; --page: #ffffff; --train: #0a66c2; --val: #c4540a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9198a1;
  --grid: #30363d; --page: #0d1117; --train: #58a6ff; --val: #ff9e4a; } }
body { margin: 24px auto; max-width: 1000px; padding: 0 16px;
  background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0 0 4px; }
p { color: var(--dim); margin: 0; }
svg { display: block; width: 100%; height: auto; margin-top: 12px; }
svg text { fill: var(--dim); font: 13px system-ui, sans-serif; }
.grid { stroke: var(--grid); } .axis { stroke: var(--dim); }
.train { stroke: var(--train); fill: none; stroke-width: 1.6; }
.val { stroke: var(--val); fill: none; stroke-width: 2; }
circle.val { fill: var(--val); stroke: none; }
circle.train { fill: var(--train); stroke: none; }
.key-train { fill: var(--train) !important; }
.key-val { fill: var(--val) !important; }
#rule { stroke: var(--dim); stroke-dasharray: 4 4; }
#values { min-height: 1.5em; font-variant-numeric: tabular-nums; }
)";

// Finds the step nearest to the pointer; POINTS and SCALE come before it.
constexpr const char* kScript = R"(
const svg = document.querySelector("svg");
const rule = document.getElementById("rule");
const dot = document.getElementById("dot");
const values = document.getElementById("values");
const at = (v, s) => s.p0 + (v - s.v0) / (s.v1 - s.v0) * (s.p1 - s.p0);
const off = (p, x) => Math.abs(at(p.step, SCALE.x) - x);
function show(event) {
  const box = svg.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width * SCALE.width;
  let best = POINTS[0];
  for (const p of POINTS)
    if (off(p, x) < off(best, x)) best = p;
  if (!best) return;
  const px = at(best.step, SCALE.x);
  rule.setAttribute("x1", px); rule.setAttribute("x2", px);
  dot.setAttribute("cx", px); dot.setAttribute("cy", at(best.loss, SCALE.y));
  rule.style.display = dot.style.display = "";
  values.textContent = `step ${best.step}: loss ${best.loss.toFixed(4)}` +
    (best.val == null ? "" : `, validation ${best.val.toFixed(4)}`) +
    `, learning rate ${best.lr.toPrecision(3)}` +
    `, ${Math.round(best.rate)} tokens/s`;
}
svg.addEventListener("pointermove", show);
svg.addEventListener("pointerdown", show);
)";

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string number(double value, const char* pattern = "%.2f") {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

// A straight map of values onto the pixels of one axis.
struct Scale {
  double value_low;
  double value_high;
  double pixel_low;
  double pixel_high;

  double at(double value) const {
    return pixel_low +
        (value - value_low) / (value_high - value_low) *
        (pixel_high - pixel_low);
  }
};

struct Axes {
  Scale x;
  Scale y;
};

Axes axes_of(const std::vector<StepMetrics>& records) {
  double last = 1;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  const auto include = [&](double loss) {
    low = std::min(low, loss);
    high = std::max(high, loss);
  };
  for (const auto& record : records) {
    last = std::max(last, static_cast<double>(record.step));
    include(record.loss);
    if (record.val_loss.has_value() && std::isfinite(*record.val_loss)) {
      include(*record.val_loss);
    }
  }
  if (records.empty()) {
    low = 0;
    high = 1;
  }
  const double margin = std::max((high - low) * 0.05, 1e-3);
  return {
      .x = {0, last, kLeft, kWidth - kRight},
      .y = {low - margin, high + margin, kHeight - kBottom, kTop}};
}

std::string line(
    double x1, double y1, double x2, double y2, const char* attributes) {
  return "<line x1='" + number(x1) + "' y1='" + number(y1) + "' x2='" +
      number(x2) + "' y2='" + number(y2) + "' " + attributes + "/>\n";
}

std::string text(
    double x, double y, const char* attributes, const std::string& content) {
  return "<text x='" + number(x) + "' y='" + number(y) + "' " + attributes +
      ">" + escaped(content) + "</text>\n";
}

std::string draw_axes(const Axes& axes) {
  const double bottom = kHeight - kBottom;
  std::string svg;
  for (const double v :
       round_ticks(axes.x.value_low, axes.x.value_high, kXTicks)) {
    svg += line(axes.x.at(v), kTop, axes.x.at(v), bottom, "class='grid'");
    svg += text(
        axes.x.at(v), bottom + 20, "text-anchor='middle'", number(v, "%g"));
  }
  for (const double v :
       round_ticks(axes.y.value_low, axes.y.value_high, kYTicks)) {
    svg += line(
        kLeft, axes.y.at(v), kWidth - kRight, axes.y.at(v), "class='grid'");
    svg +=
        text(kLeft - 8, axes.y.at(v) + 4, "text-anchor='end'", number(v, "%g"));
  }
  svg += line(kLeft, bottom, kWidth - kRight, bottom, "class='axis'");
  svg += line(kLeft, kTop, kLeft, bottom, "class='axis'");
  svg += text(
      (kLeft + kWidth - kRight) / 2, kHeight - 8, "text-anchor='middle'",
      "step");
  svg += text(
      18, (kTop + bottom) / 2,
      "text-anchor='middle' transform='rotate(-90 18 214)'",
      "loss (nats per token)");
  svg += text(
      kWidth - kRight - 8, kTop + 16, "text-anchor='end' class='key-train'",
      "training");
  svg += text(
      kWidth - kRight - 8, kTop + 34, "text-anchor='end' class='key-val'",
      "validation");
  return svg;
}

std::string draw_curves(
    const Axes& axes, const std::vector<StepMetrics>& records) {
  std::string training;
  std::string validation;
  std::string dots;
  for (const auto& record : records) {
    const auto x = number(axes.x.at(static_cast<double>(record.step)));
    training += x + "," + number(axes.y.at(record.loss)) + " ";
    if (record.val_loss.has_value() && std::isfinite(*record.val_loss)) {
      const auto y = number(axes.y.at(*record.val_loss));
      validation += x + "," + y + " ";
      dots += "<circle class='val' cx='" + x + "' cy='" + y + "' r='3.5'/>\n";
    }
  }
  return "<polyline class='train' points='" + training + "'/>\n" +
      "<polyline class='val' points='" + validation + "'/>\n" + dots;
}

nlohmann::json scale_json(const Axes& axes) {
  const auto one = [](const Scale& s) {
    return nlohmann::json{
        {"v0", s.value_low},
        {"v1", s.value_high},
        {"p0", s.pixel_low},
        {"p1", s.pixel_high}};
  };
  return {{"width", kWidth}, {"x", one(axes.x)}, {"y", one(axes.y)}};
}

nlohmann::json points_json(const std::vector<StepMetrics>& records) {
  auto points = nlohmann::json::array();
  for (const auto& record : records) {
    points.push_back(
        {{"step", record.step},
         {"loss", record.loss},
         {"val",
          record.val_loss.has_value() ? nlohmann::json(*record.val_loss)
                                      : nlohmann::json()},
         {"lr", record.lr},
         {"rate", record.tokens_per_s}});
  }
  return points;
}

}  // namespace

std::vector<double> round_ticks(double low, double high, int count) {
  const double raw = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = power * 10;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= raw) {
      step = factor * power;
    }
  }
  std::vector<double> ticks;
  const auto first = std::ceil(low / step - 1e-9);
  const auto last = std::floor(high / step + 1e-9);
  for (double i = first; i <= last; ++i) {
    ticks.push_back(i * step + 0.0);  // Adding turns -0 into 0.
  }
  return ticks;
}

std::string curve_html(
    const std::string& title,
    const std::vector<std::string>& facts,
    const std::vector<StepMetrics>& records) {
  std::vector<StepMetrics> shown;
  std::copy_if(
      records.begin(), records.end(), std::back_inserter(shown),
      [](const StepMetrics& record) { return std::isfinite(record.loss); });
  const auto axes = axes_of(shown);
  std::string html =
      "<!doctype html>\n<html lang='en'><head><meta charset="
      "'utf-8'><meta name='viewport' content='width=device-width'>\n<title>" +
      escaped(title) + "</title><style>" + kStyle + "</style></head><body>\n" +
      "<h1>" + escaped(title) + "</h1>\n";
  for (const auto& fact : facts) {
    html += "<p>" + escaped(fact) + "</p>\n";
  }
  html += "<svg viewBox='0 0 " + number(kWidth, "%g") + " " +
      number(kHeight, "%g") + "' role='img' aria-label='loss by step'>\n" +
      draw_axes(axes) + draw_curves(axes, shown) +
      line(0, kTop, 0, kHeight - kBottom, "id='rule' style='display:none'") +
      "<circle id='dot' class='train' r='4' style='display:none'/>\n</svg>\n" +
      "<p id='values'>Move over the curve to see its values.</p>\n<script>" +
      "\nconst POINTS = " + points_json(shown).dump() +
      ";\nconst SCALE = " + scale_json(axes).dump() + ";" + kScript +
      "</script></body></html>\n";
  return html;
}

}  // namespace sherd::tools
