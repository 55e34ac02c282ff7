// SPDX-License-Identifier: Apache-2.0
#include "fsdp/unit_report.h"

#include <algorithm>
#include <string>
#include "base/check.h"
#include "base/printable.h"
#include "base/text.h"

namespace sherd {
namespace {

std::string line_of(const UnitReport& unit, std::size_t name_width) {
  const auto overlap = unit.gather_s > 0.0
      ? columns("%7.1f %%", 100.0 * unit.overlap)
      : std::string("        -");
  return padded(unit.name, name_width) +
      columns(
             "%14lld %9lld %9lld %10.3f %10.3f ",
             static_cast<long long>(unit.bytes),
             static_cast<long long>(unit.visits),
             static_cast<long long>(unit.gathers), unit.gather_s,
             unit.waited_s) +
      overlap + "\n";
}

std::string json_of(at::ScalarType dtype) {
  return json_string(c10::toString(dtype));
}

std::string json_of(const FlatReport& flat) {
  return str(
      "{\"parameters\":", json_array(flat.parameters, json_string),
      ",\"numel\":", flat.numel, ",\"dtype\":", json_of(flat.dtype),
      ",\"param_dtype\":", json_of(flat.param_dtype),
      ",\"reduce_dtype\":", json_of(flat.reduce_dtype),
      ",\"gradient_dtype\":", json_of(flat.gradient_dtype),
      ",\"trainable\":", json_bool(flat.trainable), "}");
}

std::string json_of(const UnitReport& unit) {
  const auto flats = json_array(
      unit.flats, [](const FlatReport& flat) { return json_of(flat); });
  return str(
      "{\"name\":", json_string(unit.name), ",\"bytes\":", unit.bytes,
      ",\"keep_whole\":", json_bool(unit.keep_whole), ",\"flats\":", flats,
      ",\"visits\":", unit.visits, ",\"gathers\":", unit.gathers,
      ",\"gather_s\":", unit.gather_s, ",\"waited_s\":", unit.waited_s,
      ",\"overlap\":", unit.overlap, "}");
}

std::string json_of(const PlanReport& plan) {
  return str(
      "{\"steps\":", plan.steps, ",\"steps_planned\":", plan.steps_planned,
      ",\"plans_made\":", plan.plans_made, ",\"deviations\":", plan.deviations,
      ",\"gathers\":", plan.gathers,
      ",\"gathered_bytes\":", plan.gathered_bytes,
      ",\"lower_bound_bytes\":", plan.lower_bound_bytes,
      ",\"tenth_more_saves_bytes\":", plan.tenth_more_saves_bytes, "}");
}

std::string json_of(const MemoryChoice& choice) {
  return str(
      "{\"limit_bytes\":", choice.limit_bytes,
      ",\"peak_bytes\":", choice.peak_bytes,
      ",\"budget_bytes\":", choice.budget_bytes,
      ",\"recomputed\":", choice.recomputed, ",\"step_s\":", choice.step_s,
      ",\"lower_bound_s\":", choice.lower_bound_s, "}");
}

std::string json_of(const MemoryReport& memory) {
  const auto choices = json_array(
      memory.choices, [](const MemoryChoice& one) { return json_of(one); });
  return str(
      "{\"decided\":", json_bool(memory.decided),
      ",\"limit_bytes\":", memory.limit_bytes,
      ",\"floor_bytes\":", memory.floor_bytes,
      ",\"peak_bytes\":", memory.peak_bytes,
      ",\"budget_bytes\":", memory.budget_bytes,
      ",\"regions\":", memory.regions, ",\"recomputed\":", memory.recomputed,
      ",\"step_s\":", memory.step_s,
      ",\"lower_bound_s\":", memory.lower_bound_s,
      ",\"last_step_s\":", memory.last_step_s, ",\"choices\":", choices, "}");
}

}  // namespace

void fsdp::add_use(
    UnitReport& report, std::int64_t visits, const UnitTimes& times) {
  report.visits = visits;
  report.gathers = times.gathers;
  report.gather_s = seconds(times.gathering);
  report.waited_s = seconds(times.waited);
  if (times.gathering > Duration(0)) {
    report.overlap = std::max(0.0, 1.0 - report.waited_s / report.gather_s);
  }
}

std::string to_text(const ShardReport& report) {
  std::size_t width = 6;
  for (const auto& unit : report.by_unit) {
    width = std::max(width, unit.name.size() + 1);
  }
  std::string text = padded("unit", width) +
      columns("%14s %9s %9s %10s %10s %9s\n", "bytes", "visits", "gathers",
              "gather s", "waited s", "overlap");
  UnitReport all;
  all.name = "all";
  for (const auto& unit : report.by_unit) {
    text += line_of(unit, width);
    all.bytes += unit.bytes;
    all.visits += unit.visits;
    all.gathers += unit.gathers;
    all.gather_s += unit.gather_s;
    all.waited_s += unit.waited_s;
  }
  if (all.gather_s > 0.0) {
    all.overlap = std::max(0.0, 1.0 - all.waited_s / all.gather_s);
  }
  return text + line_of(all, width);
}

std::string to_json(const ShardReport& report) {
  const auto by_unit = json_array(
      report.by_unit, [](const UnitReport& unit) { return json_of(unit); });
  return str(
      "{\"units\":", report.units, ",\"budget_bytes\":", report.budget_bytes,
      ",\"unsharded_bytes_peak\":", report.unsharded_bytes_peak,
      ",\"shard_bytes\":", report.shard_bytes,
      ",\"gradient_slot_bytes_peak\":", report.gradient_slot_bytes_peak,
      ",\"unshards\":", report.unshards,
      ",\"unsharded_bytes\":", report.unsharded_bytes,
      ",\"gather_sent_bytes\":", report.gather_sent_bytes,
      ",\"memory_from_backend\":", json_bool(report.memory_from_backend),
      ",\"reduces\":", report.reduces,
      ",\"reduces_under_way_peak\":", report.reduces_under_way_peak,
      ",\"backwards\":", report.backwards,
      ",\"hook\":", json_string(report.hook),
      ",\"hook_bytes\":", report.hook_bytes, ",\"plan\":", json_of(report.plan),
      ",\"by_unit\":", by_unit, ",\"memory\":", json_of(report.memory), "}");
}

}  // namespace sherd
