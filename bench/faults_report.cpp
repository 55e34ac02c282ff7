// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

namespace sherd::bench {
namespace {

using Target = InjectedKill::Target;

constexpr double kCostMax = 1.02;  // For the lower end of the interval.
constexpr double kCostWidthMax = 0.05;

// Nothing while the interval is too wide to decide.
std::optional<bool> cost_met(const MedianEstimate& ratio) {
  if (ratio.low > kCostMax) {
    return false;
  }
  return ratio.width() <= kCostWidthMax ? std::optional(true) : std::nullopt;
}

std::string cell(const std::optional<double>& value) {
  return value ? format(" %8.2f", *value) : format(" %8s", "-");
}

std::string head_of(
    const FaultsConfig& config, const BenchmarkContext& context) {
  const auto work = workload_of(config);
  return "work     " + work.name + ", batch " + std::to_string(work.batch) +
      format(" a rank, %.1f million parameters\n",
             static_cast<double>(parameters_of(work)) / 1e6) +
      "job      " + std::to_string(config.shape.replicas) + " replicas of " +
      std::to_string(config.shape.ranks) +
      (config.shape.ranks == 1 ? " rank, " : " ranks, ") + config.exchange +
      " exchange\n" + "machine  " + context.machine + "\n" + "build    sherd " +
      context.sherd_version + ", commit " + context.commit + ", " +
      context.build + "\n";
}

std::string row_of(const FaultMetrics& fault) {
  const bool of_rank = fault.kill.target == Target::kRank;
  return (of_rank
              ? format(
                    "replica %d, rank %d ", fault.kill.replica, fault.kill.rank)
              : format("%-18s", "coordinator")) +
      format(" %8.3f %8.3f", fault.kill.usual_s, fault.gap_s) +
      cell(fault.restart_s) + cell(fault.return_s) + cell(fault.throughput) +
      "\n";
}

std::string verdict(std::optional<bool> met) {
  return !met ? ": not known\n" : *met ? ": met\n" : ": NOT met\n";
}

Json numbers(const std::vector<double>& values) {
  Json json = Json::array();
  for (const double value : values) {
    json.push_back(number(value));
  }
  return json;
}

// Null if there are no values.
Json median_or_null(const std::vector<double>& values) {
  return values.empty() ? Json(nullptr) : number(median(values));
}

void put_context(
    Json& json, const FaultsConfig& config, const BenchmarkContext& found) {
  json["work"] = config.work;
  json["batch"] = workload_of(config).batch;
  json["replicas"] = config.shape.replicas;
  json["ranks"] = config.shape.ranks;
  json["exchange"] = config.exchange;
  put(json, found);
}

double measured_over_simulated(const FaultsResult& result) {
  return median(gaps_of(result, Target::kRank)) /
      median(result.simulated_gaps_s);
}

// One number for each kill of a rank; null if it is unknown.
template <typename Member>
Json of_ranks(const FaultsResult& result, Member member) {
  Json json = Json::array();
  for (const auto& fault : result.faults) {
    if (fault.kill.target == Target::kRank) {
      json.push_back(number(fault.*member));
    }
  }
  return json;
}

void put_criteria(Json& json, const FaultCriteria& criteria) {
  const auto put = [&](const char* name, std::optional<bool> met) {
    json[name] = met ? Json(*met) : Json(nullptr);
  };
  put("gap_met", criteria.gap);
  put("coordinator_gap_met", criteria.coordinator_gap);
  put("throughput_met", criteria.throughput);
  put("nothing_lost", criteria.nothing_lost);
  put("bars_met", criteria.all());
}

}  // namespace

std::string table_of(
    const FaultsConfig& config,
    const FaultsResult& result,
    const BenchmarkContext& context) {
  const auto criteria = check_criteria(result);
  std::string text = head_of(config, context) +
      format("run      %ld steps in %.0f s, seed %ld\n\n",
             static_cast<long>(result.steps), result.seconds,
             static_cast<long>(config.seed)) +
      "killed               step s    gap s  again s   back s  throughput\n";
  for (const auto& fault : result.faults) {
    text += row_of(fault);
  }
  text += format("\nstep without faults    %.3f s\n", result.step_s);
  text += "gap                    " +
      median_text(gaps_of(result, Target::kRank)) +
      format(" s, at most %.2f", criteria.gap_s_max) + verdict(criteria.gap);
  if (!result.simulated_gaps_s.empty()) {
    text += "gap, simulated         " + median_text(result.simulated_gaps_s) +
        format(" s, the measured one is %.2f of it\n",
               measured_over_simulated(result));
  }
  text += "gap, coordinator       " +
      median_text(gaps_of(result, Target::kCoordinator)) + " s, at most 2" +
      verdict(criteria.coordinator_gap);
  text += "back after             " +
      median_text(known_of(result, &FaultMetrics::return_s)) + " s\n";
  text += "throughput meanwhile   " +
      median_text(known_of(result, &FaultMetrics::throughput)) +
      ", at least 0.9" + verdict(criteria.throughput);
  text += format(
      "discarded steps %d, divergences %d of %d states compared",
      result.discarded_steps, result.hashes.divergences,
      result.hashes.compared);
  return text + verdict(criteria.nothing_lost);
}

std::string json_of(
    const FaultsConfig& config,
    const FaultsResult& result,
    const BenchmarkContext& context) {
  const auto criteria = check_criteria(result);
  int lost = 0;
  for (const auto& fault : result.faults) {
    lost += fault.survivors_lost;
  }
  Json json;
  json["step_s"] = number(result.step_s);
  json["gap_s"] = of_ranks(result, &FaultMetrics::gap_s);
  json["coordinator_gap_s"] = numbers(gaps_of(result, Target::kCoordinator));
  json["restart_s"] = of_ranks(result, &FaultMetrics::restart_s);
  json["return_s"] = of_ranks(result, &FaultMetrics::return_s);
  json["throughput_while_returning"] =
      of_ranks(result, &FaultMetrics::throughput);
  json["gap_s_median"] = median_or_null(gaps_of(result, Target::kRank));
  json["gap_s_simulated_median"] = median_or_null(result.simulated_gaps_s);
  json["gap_s_max"] = number(criteria.gap_s_max);
  json["coordinator_gap_s_median"] =
      median_or_null(gaps_of(result, Target::kCoordinator));
  json["throughput_median"] =
      median_or_null(known_of(result, &FaultMetrics::throughput));
  json["discarded_steps"] = result.discarded_steps;
  json["divergences"] = result.hashes.divergences;
  json["states_compared"] = result.hashes.compared;
  json["survivors_lost"] = lost;
  put_criteria(json, criteria);
  json["kills"] = result.faults.size();
  json["seed"] = config.seed;
  json["steps"] = result.steps;
  json["seconds"] = number(result.seconds);
  put_context(json, config, context);
  return json.dump();
}

std::string table_of(
    const FaultsConfig& config,
    const CostResult& result,
    const BenchmarkContext& context) {
  const auto ratio = cost_of(result);
  return head_of(config, context) +
      format("rounds   %d of %d timed steps each, %.0f s; ",
             static_cast<int>(result.plain_ms.size()), result.block_steps,
             result.seconds) +
      result.why_stopped + "\n\n" + "plain hybrid sharding  " +
      median_text(result.plain_ms) + " ms a step\n" +
      "fault-tolerant         " + median_text(result.fault_tolerant_ms) +
      " ms a step\n" + "ratio                  " +
      median_text(ratios(result.fault_tolerant_ms, result.plain_ms)) +
      format(", its lower end at most %.2f", kCostMax) +
      verdict(cost_met(ratio));
}

std::string json_of(
    const FaultsConfig& config,
    const CostResult& result,
    const BenchmarkContext& context) {
  Json json;
  put(json, "plain_ms", estimate_median(result.plain_ms));
  put(json, "fault_tolerant_ms", estimate_median(result.fault_tolerant_ms));
  const auto ratio = cost_of(result);
  put(json, "cost_ratio", ratio);
  const auto met = cost_met(ratio);
  json["cost_met"] = met ? Json(*met) : Json(nullptr);
  json["rounds"] = result.plain_ms.size();
  json["block_steps"] = result.block_steps;
  json["seconds"] = number(result.seconds);
  json["why_stopped"] = result.why_stopped;
  put_context(json, config, context);
  return json.dump();
}

}  // namespace sherd::bench
