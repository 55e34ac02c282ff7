// SPDX-License-Identifier: Apache-2.0
#include "train/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include "base/printable.h"
#include "format_text.h"

namespace sherd::tools {
namespace {

// The SVG's own units, independent of pixels.
constexpr double kUnits = 1000;
constexpr int kXTicks = 5;
constexpr int kYTicks = 6;

std::string number(double value, const char* pattern = "%.1f") {
  return format(pattern, value);
}

// Maps values linearly onto [0, 1].
struct Scale {
  double low;
  double high;
  double at(double value) const { return (value - low) / (high - low); }
};

Scale y_scale(const std::vector<Series>& series) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const auto& one : series) {
    for (const auto& [x, y] : one.points) {
      low = std::min(low, y);
      high = std::max(high, y);
    }
  }
  if (low > high) {  // There are no points.
    return {0, 1};
  }
  const double margin =
      high > low ? (high - low) * 0.05 : std::max(std::abs(high) * 0.05, 1e-6);
  return {low - margin, high + margin};
}

std::string grid_line(double x1, double y1, double x2, double y2) {
  return "<path d='M" + number(x1) + " " + number(y1) + "L" + number(x2) + " " +
      number(y2) + "'/>";
}

std::string label(const char* side, double share, const std::string& text) {
  return "<span style='" + std::string(side) + ":" +
      number(share * 100, "%.2f") + "%'>" + text + "</span>";
}

std::string draw(const Series& series, const Scale& x, const Scale& y) {
  std::string points;
  std::string dots;
  for (const auto& [step, value] : series.points) {
    const auto at_x = number(x.at(step) * kUnits);
    const auto at_y = number((1 - y.at(value)) * kUnits);
    points += at_x + "," + at_y + " ";
    if (series.dots) {  // A round cap stays round when stretched.
      dots += "M" + at_x + " " + at_y + "h0";
    }
  }
  return "<polyline class='" + std::string(series.css_class) + "' points='" +
      points + "'/>\n" +
      (dots.empty() ? ""
                    : "<path class='dot " + std::string(series.css_class) +
               "' d='" + dots + "'/>\n");
}

std::string title_by_axis(const Plot& plot) {
  return std::string(plot.title) + " by " + plot.x_name;
}

std::string legend(const Plot& plot) {
  std::string html = "<figcaption>" + html_escaped(plot.title);
  for (const auto& series : plot.series) {
    if (*series.name != '\0' && !series.points.empty()) {
      html += " <span class='key " + std::string(series.css_class) + "'>" +
          html_escaped(series.name) + "</span>";
    }
  }
  return html + "</figcaption>\n";
}

// The colours of one page's lines are its own.
constexpr const char* kPageStyle = R"(
:root { color-scheme: light dark; --ink: #1f2328; --dim: #656d76;
  --grid: #d8dee4; --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9198a1;
  --grid: #30363d; --page: #0d1117; } }
body { margin: 24px auto; max-width: 1000px; padding: 0 16px;
  background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0 0 4px; overflow-wrap: anywhere; }
p { color: var(--dim); margin: 0; overflow-wrap: anywhere; }
figure { margin: 20px 0 0; }
figcaption { font-weight: 600; }
.key { font-weight: 400; color: var(--dim); margin-right: 8px;
  white-space: nowrap; }
.key::before { content: ""; display: inline-block; width: 16px; height: 3px;
  margin-right: 5px; vertical-align: middle; background: var(--line);
  opacity: var(--fade, 1); }
.plot { position: relative; height: 240px; margin: 8px 12px 26px 56px;
  touch-action: pan-y; }
figure:first-of-type .plot { height: 340px; }
.plot svg { position: absolute; width: 100%; height: 100%; overflow: visible; }
.plot path, .plot polyline { fill: none; stroke: var(--line); stroke-width: 1.5;
  stroke-linejoin: round; opacity: var(--fade, 1);
  vector-effect: non-scaling-stroke; }
.plot .grid path { stroke: var(--grid); stroke-width: 1; }
.plot .axis path { stroke: var(--dim); stroke-width: 1; }
.plot .dot { stroke-width: 7; stroke-linecap: round; }
.plot .x, .plot .y { color: var(--dim); font-size: 13px; line-height: 1;
  font-variant-numeric: tabular-nums; }
.plot .y span { position: absolute; right: 100%; padding-right: 6px;
  transform: translateY(50%); white-space: nowrap; }
.plot .x span { position: absolute; top: 100%; padding-top: 7px;
  transform: translateX(-50%); white-space: nowrap; }
.rule { position: absolute; top: 0; bottom: 0; display: none;
  border-left: 1px dashed var(--dim); }
@media (max-width: 600px) { .plot { height: 170px; }
  figure:first-of-type .plot { height: 240px; } }
)";

}  // namespace

std::string page_html(const Page& page) {
  return "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\n"
         "<meta name='viewport' content='width=device-width, "
         "initial-scale=1'>\n<title>" +
      html_escaped(page.title) + "</title>\n<style>" + kPageStyle + page.style +
      "</style></head><body>\n" + page.body + "</body></html>\n";
}

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

std::string tick_label(double value) {
  if (std::abs(value) >= 1e6) {
    return number(value / 1e6, "%g") + "M";
  }
  return std::abs(value) >= 1e4 ? number(value / 1e3, "%g") + "k"
                                : number(value, "%g");
}

std::string plot_html(const Plot& plot) {
  const Scale x{0, plot.x_high};
  const Scale y = y_scale(plot.series);
  std::string grid;
  std::string x_labels;
  std::string y_labels;
  for (const double tick : round_ticks(x.low, x.high, kXTicks)) {
    const double at = x.at(tick);
    grid += grid_line(at * kUnits, 0, at * kUnits, kUnits);
    x_labels += label(
        "left", at,
        tick == 0 ? html_escaped(plot.x_name) + " 0" : tick_label(tick));
  }
  for (const double tick : round_ticks(y.low, y.high, kYTicks)) {
    const double at = y.at(tick);
    grid += grid_line(0, (1 - at) * kUnits, kUnits, (1 - at) * kUnits);
    y_labels += label("bottom", at, tick_label(tick));
  }
  std::string lines;
  for (const auto& series : plot.series) {
    lines += draw(series, x, y);
  }
  return "<figure>" + legend(plot) + "<div class='plot'>\n<div class='y'>" +
      y_labels + "</div>\n<div class='x'>" + x_labels +
      "</div>\n<svg viewBox='0 0 1000 1000' preserveAspectRatio='none' "
      "role='img' aria-label='" +
      html_escaped(title_by_axis(plot)) + "'>\n<g class='grid'>" + grid +
      "</g><g class='axis'>" + grid_line(0, 0, 0, kUnits) +
      grid_line(0, kUnits, kUnits, kUnits) + "</g>\n" + lines +
      "</svg>\n<div class='rule'></div></div></figure>\n";
}

}  // namespace sherd::tools
