// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace sherd::bench {
namespace {

// Contenders whose times are divided by each other, in addition to those divided by the bound's.
constexpr std::pair<const char*, const char*> kCompared[] = {
    {"sherd", "fsdp2"},
    {"sherd", "ddp"},
    {"python", "sherd"},
    {"python", "fsdp2"},
    {"python", "ddp"}};

const ContenderResult* find(const StepResult& result, const std::string& name) {
  const auto found = std::find_if(
      result.contenders.begin(), result.contenders.end(),
      [&](const ContenderResult& each) { return each.name == name; });
  return found == result.contenders.end() ? nullptr : &*found;
}

// Nothing unless both ran.
std::optional<MedianEstimate> ratio_of(
    const StepResult& result,
    const std::string& name,
    const std::string& other) {
  const auto* a = find(result, name);
  const auto* b = find(result, other);
  return a != nullptr && b != nullptr
      ? std::optional(estimate_median(ratios(a->round_ms, b->round_ms)))
      : std::nullopt;
}

// Per rank and step.
double per_step(double sum, const ContenderResult& measured) {
  return sum /
      static_cast<double>(std::max<std::int64_t>(measured.rank_steps, 1));
}

double faults_of(const ContenderResult& measured) {
  return per_step(static_cast<double>(measured.faults), measured);
}

std::string row_of(
    const ContenderResult& measured, const ContenderResult& bound) {
  const auto time = estimate_median(measured.round_ms);
  std::string row = format(
      "%-7s %9.2f  %-17s %8.2f %8.2f", measured.name.c_str(), time.median,
      interval_text(time, 2).c_str(), quantile(measured.step_ms, 0.9),
      quantile(measured.step_ms, 0.99));
  if (&measured == &bound) {
    row += format("  %6.3f  %-13s", 1.0, "");
  } else {
    const auto ratio =
        estimate_median(ratios(measured.round_ms, bound.round_ms));
    row +=
        format("  %6.3f  %-13s", ratio.median, interval_text(ratio, 3).c_str());
  }
  row += format(
      "  %8.1f %9.1f %7.0f\n", per_step(measured.cpu_ms, measured),
      static_cast<double>(measured.pss_bytes_peak) / (1 << 20),
      faults_of(measured));
  return row;
}

}  // namespace

std::string table_of(
    const StepConfig& config,
    const StepResult& result,
    const BenchmarkContext& context) {
  const auto work = workload_named(config.work);
  std::string text = format(
      "work     %s: %d layers, width %d, %d heads, sequence %d, batch %d a "
      "rank, %.1f million parameters\n",
      work.name.c_str(), static_cast<int>(work.layers),
      static_cast<int>(work.width), static_cast<int>(work.heads),
      static_cast<int>(work.sequence), static_cast<int>(work.batch),
      static_cast<double>(parameters_of(work)) / 1e6);
  text += "job      " + std::to_string(config.ranks) +
      (config.ranks == 1 ? " rank, " : " ranks, ") + config.dtype + ", " +
      config.strategy +
      (config.replicate == 1
           ? ""
           : ", " + std::to_string(config.replicate) + " replicas") +
      (config.budget.empty() ? "" : ", budget " + config.budget) + ", " +
      config.exchange + " exchange, " + config.heap + " heap" +
      (config.update == "step" ? "" : ", AdamW in backward") + "\n";
  text += "machine  " + context.machine + "\n";
  text += "build    sherd " + context.sherd_version + ", commit " +
      context.commit + ", " + context.build + ", LibTorch " +
      result.contenders.front().torch_version + "\n";
  text += format(
      "rounds   %d of %d timed steps a contender, %.0f s; %s\n\n",
      result.rounds, result.block_steps, result.seconds,
      result.why_stopped.c_str());
  text +=
      "          step ms  95 %                   p90      p99  "
      "to bound  95 %             cpu ms   PSS MiB  faults\n";
  for (const auto& measured : result.contenders) {
    text += row_of(measured, result.contenders.front());
  }
  for (const auto& [name, other] : kCompared) {
    if (const auto ratio = ratio_of(result, name, other)) {
      text += format(
          "%s / %-5s %.3f  (%s)\n", name, other, ratio->median,
          interval_text(*ratio, 3).c_str());
    }
  }
  return text;
}

std::string json_of(
    const StepConfig& config,
    const StepResult& result,
    const BenchmarkContext& context) {
  Json json;
  const std::vector<std::string> names = {
      "bound", "sherd", "python", "fsdp2", "ddp"};
  for (const auto& name : names) {
    const auto* measured = find(result, name);
    put(json, name + "_ms",
        measured != nullptr ? std::optional(estimate_median(measured->round_ms))
                            : std::nullopt);
  }
  for (const auto& name : {"sherd", "python", "fsdp2", "ddp"}) {
    put(json, std::string(name) + "_ratio", ratio_of(result, name, "bound"));
  }
  for (const auto& [name, other] : kCompared) {
    put(json, std::string(name) + "_to_" + other,
        ratio_of(result, name, other));
  }
  for (const auto& name : names) {
    const auto* measured = find(result, name);
    json[name + "_pss_bytes"] =
        measured != nullptr ? Json(measured->pss_bytes_peak) : Json();
    json[name + "_cpu_ms"] = measured != nullptr
        ? number(per_step(measured->cpu_ms, *measured))
        : Json();
    json[name + "_faults"] =
        measured != nullptr ? number(faults_of(*measured)) : Json();
    json[name + "_torch"] =
        measured != nullptr ? Json(measured->torch_version) : Json();
  }
  json["work"] = config.work;
  json["mode"] = config.mode;
  json["exchange"] = config.exchange;
  json["ranks"] = config.ranks;
  json["replicate"] = config.replicate;
  json["dtype"] = config.dtype;
  json["strategy"] = config.strategy;
  json["budget_bytes"] =
      config.budget.empty() ? Json() : Json(budget_bytes_of(config));
  json["update"] = config.update;
  json["heap"] = config.heap;
  json["block_steps"] = result.block_steps;
  json["rounds"] = result.rounds;
  json["seconds"] = number(result.seconds);
  json["why_stopped"] = result.why_stopped;
  put(json, context);
  return json.dump();
}

}  // namespace sherd::bench
