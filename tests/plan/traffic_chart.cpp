// SPDX-License-Identifier: Apache-2.0
//
// Draws docs/design/plan_traffic.svg: traffic over budget, from the planner itself.
//   plan_traffic_chart         prints the drawing
//   plan_traffic_chart FILE    exits with 1 when FILE is another one
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>
#include "plan/residency.h"
#include "plan/schedule_testing.h"
#include "plan/unit_schedule.h"

namespace sherd::plan {
namespace {

constexpr UnitId kLayers = 32;
constexpr int kMicroBatches = 4;

struct Point {
  std::int64_t x;
  std::int64_t y;
};

struct Series {
  std::string name;
  std::string style;  // SVG attributes of the line.
  std::vector<Point> points;
};

struct Panel {
  std::string title;
  std::string x_title;
  // In the units of the points.
  std::int64_t x_min, x_max, x_tick, y_max, y_tick;
  std::vector<Series> series;
};

const char* const kSchedule = R"(stroke="#0b6e99" stroke-width="2.5")";
const char* const kBound = R"(stroke="#111" stroke-dasharray="2 4")";
const char* const kLru = R"(stroke="#888" stroke-width="1.5")";
const char* const kFixed = R"(stroke="#d1721b" stroke-width="1.5")";

// --- Traffic -----------------------------------------------------------------

// A tied embedding (unit 32, as large as 4 layers) around layers in checkpoint
// segments of 4.
Visits transformer_visits() {
  Visits visits;
  for (int batch = 0; batch < kMicroBatches; ++batch) {
    const Visits layers = segment_visits(kLayers, 4, 1);
    visits.push_back({kLayers});
    visits.insert(visits.end(), layers.begin(), layers.begin() + kLayers);
    visits.push_back({kLayers});  // The head.
    visits.insert(visits.end(), layers.begin() + kLayers, layers.end());
    if (batch + 1 == kMicroBatches) {
      visits.push_back({kLayers});
    }
  }
  return visits;
}

std::vector<std::int64_t> transformer_sizes() {
  std::vector<std::int64_t> sizes(kLayers, 1);
  sizes.push_back(4);
  return sizes;
}

std::int64_t lru_traffic(const ScheduleInput& input) {
  Residency residency(
      input.unit_bytes,
      {.bytes = input.budget_bytes[0], .assumed_visit_bytes = std::nullopt});
  std::int64_t traffic = 0;
  for (const std::vector<UnitId>& set : input.visits) {
    for (const UnitId unit : residency.visit(set).value().fetch) {
      traffic += input.unit_bytes[static_cast<std::size_t>(unit)];
    }
  }
  return traffic;
}

// The units of `order` that fit stay whole for the step, the others come at each
// visit, beside them.
std::int64_t fixed_set_traffic(
    const ScheduleInput& input, const std::vector<UnitId>& order) {
  std::vector<std::int64_t> streamed = input.unit_bytes;  // 0: kept.
  std::int64_t kept_bytes = 0;
  for (const UnitId unit : order) {
    const std::int64_t bytes =
        std::exchange(streamed[static_cast<std::size_t>(unit)], 0);
    const std::int64_t largest =
        *std::max_element(streamed.begin(), streamed.end());
    if (kept_bytes + bytes + largest <= input.budget_bytes[0]) {
      kept_bytes += bytes;
    } else {
      streamed[static_cast<std::size_t>(unit)] = bytes;
    }
  }
  std::int64_t traffic = kept_bytes;
  for (const std::vector<UnitId>& set : input.visits) {
    traffic += streamed[static_cast<std::size_t>(set[0])];
  }
  return traffic;
}

// The better of two sets: by number of uses, with the embedding first or last.
std::int64_t fixed_set_traffic(const ScheduleInput& input) {
  std::vector<int> uses(input.unit_bytes.size());
  for (const std::vector<UnitId>& set : input.visits) {
    ++uses[static_cast<std::size_t>(set[0])];
  }
  std::vector<UnitId> order(kLayers);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](UnitId a, UnitId b) {
    const int more =
        uses[static_cast<std::size_t>(a)] - uses[static_cast<std::size_t>(b)];
    return more != 0 ? more > 0 : a < b;
  });
  std::vector<UnitId> embedding_first{kLayers};
  embedding_first.insert(embedding_first.end(), order.begin(), order.end());
  order.push_back(kLayers);
  return std::min(
      fixed_set_traffic(input, order),
      fixed_set_traffic(input, embedding_first));
}

// One panel's workload has M = 36 layers; traffic is in thousandths of M.
Panel transformer_panel() {
  Series fixed{"fixed resident set", kFixed, {}};
  Series lru{"least recently used", kLru, {}};
  Series schedule{"schedule, one visit ahead", kSchedule, {}};
  Series bound{"lower bound", kBound, {}};
  constexpr std::int64_t kM = 36;
  for (std::int64_t budget = 5; budget <= kM; ++budget) {
    const ScheduleInput input =
        schedule_input(transformer_sizes(), transformer_visits(), budget, 1);
    const UnitSchedule::Report report =
        make_unit_schedule(input).value().report;
    const std::int64_t x = 1000 * budget / kM;
    fixed.points.push_back({x, 1000 * fixed_set_traffic(input) / kM});
    lru.points.push_back({x, 1000 * lru_traffic(input) / kM});
    schedule.points.push_back({x, 1000 * report.gathered_bytes / kM});
    bound.points.push_back({x, 1000 * report.lower_bound_bytes / kM});
  }
  return {
      .title = "32 layers in segments of 4, tied embedding",
      .x_title = "budget / M",
      .x_min = 0,
      .x_max = 1000,
      .x_tick = 200,
      .y_max = 12000,
      .y_tick = 2000,
      .series = {fixed, lru, schedule, bound}};
}

// Layers of 4 bytes, each with 3 bytes of activations from its forward to its
// backward; x is the room for both, in thousandths of a layer.
Panel activations_panel() {
  Series constant{"one budget for all visits", kFixed, {}};
  Series by_visit{"budget of each visit", kSchedule, {}};
  constexpr std::int64_t kM = 128;
  for (std::int64_t room = 26; room <= 56; ++room) {
    ScheduleInput input = schedule_input(
        std::vector<std::int64_t>(kLayers, 4),
        chain_visits(kLayers, kMicroBatches), room * 4 - 96, 1);
    const auto traffic = [&] {
      return 1000 * make_unit_schedule(input).value().report.gathered_bytes /
          kM;
    };
    constant.points.push_back({1000 * room, traffic()});
    for (std::size_t visit = 0; visit < input.visits.size(); ++visit) {
      const std::int64_t layers = input.visits[visit][0] + 1;
      input.budget_bytes[visit] = room * 4 - layers * 3;
    }
    by_visit.points.push_back({1000 * room, traffic()});
  }
  return {
      .title = "32 layers, activations 0.75 layer each",
      .x_title = "room for parameters and activations, in layers",
      .x_min = 24000,
      .x_max = 56000,
      .x_tick = 8000,
      .y_max = 8000,
      .y_tick = 2000,
      .series = {constant, by_visit}};
}

// --- Drawing: whole pixels, so that every machine draws the same ------------

constexpr std::int64_t kWidth = 360;
constexpr std::int64_t kHeight = 240;

struct Drawing {
  std::ostringstream out;
  std::int64_t left;
  std::int64_t top;

  void text(
      std::int64_t x,
      std::int64_t y,
      const char* anchor,
      const std::string& words) {
    out << "<text x=\"" << x << "\" y=\"" << y << "\" text-anchor=\"" << anchor
        << "\">" << words << "</text>\n";
  }

  void line(const std::vector<Point>& points, const std::string& style) {
    out << "<polyline fill=\"none\" " << style << " points=\"";
    for (const Point& point : points) {
      out << point.x << "," << point.y << " ";
    }
    out << "\"/>\n";
  }
};

std::string thousandths(std::int64_t value) {
  const std::int64_t tenths = value / 100 % 10;
  std::string text = std::to_string(value / 1000);
  if (tenths != 0) {
    text.append(".").append(std::to_string(tenths));
  }
  return text;
}

void draw(const Panel& panel, Drawing& drawing) {
  const auto x_of = [&](std::int64_t x) {
    return drawing.left +
        (x - panel.x_min) * kWidth / (panel.x_max - panel.x_min);
  };
  const auto y_of = [&](std::int64_t y) {
    return drawing.top + kHeight - y * kHeight / panel.y_max;
  };
  drawing.text(
      drawing.left + kWidth / 2, drawing.top - 12, "middle", panel.title);
  drawing.text(
      drawing.left + kWidth / 2, drawing.top + kHeight + 36, "middle",
      panel.x_title);
  for (std::int64_t y = 0; y <= panel.y_max; y += panel.y_tick) {
    drawing.line(
        {{drawing.left, y_of(y)}, {drawing.left + kWidth, y_of(y)}},
        R"(stroke="#ddd")");
    drawing.text(drawing.left - 6, y_of(y) + 4, "end", thousandths(y));
  }
  for (std::int64_t x = panel.x_min; x <= panel.x_max; x += panel.x_tick) {
    drawing.text(x_of(x), drawing.top + kHeight + 18, "middle", thousandths(x));
  }
  std::int64_t legend_y = drawing.top + 16;
  for (const Series& series : panel.series) {
    std::vector<Point> points;
    points.reserve(series.points.size());
    for (const Point& point : series.points) {
      points.push_back({x_of(point.x), y_of(point.y)});
    }
    drawing.line(points, series.style);
    const std::int64_t x = drawing.left + kWidth - 190;
    drawing.line({{x, legend_y - 4}, {x + 24, legend_y - 4}}, series.style);
    drawing.text(x + 30, legend_y, "start", series.name);
    legend_y += 18;
  }
}

std::string chart() {
  Drawing drawing{.out = {}, .left = 50, .top = 60};
  drawing.out
      << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 880 350\" "
         "font-family=\"sans-serif\" font-size=\"12\">\n"
         "<!-- Drawn by tests/plan/traffic_chart.cpp. -->\n"
         "<rect width=\"880\" height=\"350\" fill=\"#fff\"/>\n";
  drawing.text(
      440, 22, "middle",
      "Bytes gathered per step of 4 micro-batches, in M (all units once)");
  draw(transformer_panel(), drawing);
  drawing.left = 490;
  draw(activations_panel(), drawing);
  drawing.out << "</svg>\n";
  return drawing.out.str();
}

}  // namespace
}  // namespace sherd::plan

int main(int argc, char** argv) {
  const std::string drawn = sherd::plan::chart();
  if (argc < 2) {
    std::cout << drawn;
    return 0;
  }
  std::ifstream file(argv[1]);
  const std::string found{std::istreambuf_iterator<char>(file), {}};
  if (found != drawn) {
    std::cerr << "expected " << argv[1]
              << " as the planner draws it, found another drawing; run "
              << argv[0] << " > " << argv[1] << "\n";
    return 1;
  }
  return 0;
}
