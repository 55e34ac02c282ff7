// SPDX-License-Identifier: Apache-2.0
#include "simulate/simulation_reports.h"

#include <nlohmann/json.hpp>

namespace sherd::tools {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const sim::SimulationResult::ControlTraffic& traffic) {
  return {
      {"coordinator_messages_per_s", traffic.coordinator_messages_per_s},
      {"coordinator_in_bytes_per_s", traffic.coordinator_in_bytes_per_s},
      {"coordinator_out_bytes_per_s", traffic.coordinator_out_bytes_per_s},
      {"leader_messages_per_s", traffic.leader_messages_per_s},
      {"leader_bytes_per_s", traffic.leader_bytes_per_s},
      {"log_records_per_s", traffic.log_records_per_s},
      {"log_bytes_per_day", traffic.log_bytes_per_day}};
}

Json json_of(const sim::SimulationResult& result) {
  const double attempts = result.commits + result.discarded_steps;
  Json json{
      {"policy", name_of(result.policy)},
      {"effective_training_time", result.effective_training_time},
      {"low", result.low},
      {"high", result.high},
      {"lowest_run", result.lowest_run},
      {"highest_run", result.highest_run},
      {"stall_share", result.stall_share},
      {"degraded_share", result.degraded_share},
      {"commits", result.commits},
      {"discarded_steps", result.discarded_steps},
      {"commit_rate", attempts > 0 ? result.commits / attempts : 0.0},
      {"failures", result.failures},
      {"epochs", result.epochs},
      {"too_few_share", result.too_few_share},
      {"replicas_given_up", result.replicas_given_up},
      {"simulated_days", result.simulated_days},
      {"runs", result.runs}};
  if (result.traffic) {
    json["traffic"] = json_of(*result.traffic);
  }
  for (const auto& one : result.resources) {
    json["resources"].push_back(
        {{"name", one.name}, {"amount", one.amount}, {"share", one.share}});
  }
  for (const auto& one : result.assumptions) {
    json["assumptions"].push_back(
        {{"name", one.name}, {"value", one.value}, {"source", one.source}});
  }
  return json;
}

}  // namespace

const char* name_of(sim::FailurePolicy policy) {
  switch (policy) {
    case sim::FailurePolicy::kRestart:
      return "restart";
    case sim::FailurePolicy::kTorchft:
      return "torchft";
    default:
      return "sherd";
  }
}

std::string simulation_json(const std::vector<sim::SimulationResult>& all) {
  Json json = json_of(all.front());
  if (all.size() > 1) {
    for (const auto& one : all) {
      json["policies"].push_back(json_of(one));
    }
  }
  return json.dump();
}

}  // namespace sherd::tools
