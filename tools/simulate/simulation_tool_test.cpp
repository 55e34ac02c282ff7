// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "simulate/simulation_reports.h"

namespace sherd::tools {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

sim::SimulationOptions short_run() {
  sim::SimulationOptions options;
  options.gpus = 64;
  options.replicas = 4;
  options.days = 0.5;
  options.mtbf_min = 60;
  options.runs = 2;
  return options;
}

std::vector<sim::SimulationResult> simulated(
    const std::vector<sim::FailurePolicy>& policies) {
  std::vector<sim::SimulationResult> all;
  for (const auto policy : policies) {
    auto options = short_run();
    options.policy = policy;
    all.push_back(sim::simulate(options));
  }
  return all;
}

TEST(SimulationJson, IsOneLineWithAllThatWasAskedFor) {
  const auto text = simulation_json(simulated({sim::FailurePolicy::kSherd}));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  const auto json = nlohmann::json::parse(text);
  for (const char* name :
       {"effective_training_time", "low", "high", "stall_share",
        "degraded_share", "commits", "discarded_steps"}) {
    EXPECT_TRUE(json.at(name).is_number()) << name;
  }
  EXPECT_GT(json["effective_training_time"], 0.9);
  EXPECT_LE(json["low"], json["effective_training_time"]);
  EXPECT_GE(json["high"], json["effective_training_time"]);
  EXPECT_FALSE(json["assumptions"].empty());
  for (const auto& one : json["assumptions"]) {
    EXPECT_FALSE(one.at("source").get<std::string>().empty());
  }
  EXPECT_GT(json["traffic"]["log_bytes_per_day"], 0);
  EXPECT_FALSE(json.contains("policies"));
}

TEST(SimulationJson, HasAllPoliciesWhereThereAreSeveral) {
  const auto json = nlohmann::json::parse(simulation_json(
      simulated({sim::FailurePolicy::kSherd, sim::FailurePolicy::kRestart})));
  EXPECT_EQ(json["policy"], "sherd");
  ASSERT_EQ(json["policies"].size(), 2U);
  EXPECT_EQ(json["policies"][1]["policy"], "restart");
}

TEST(SimulationTable, NamesReplicasThatWereGivenUp) {
  auto all = simulated({sim::FailurePolicy::kSherd});
  EXPECT_THAT(simulation_table(all), Not(HasSubstr("are given up")));
  all[0].replicas_given_up = 1.5;
  EXPECT_THAT(
      simulation_table(all),
      HasSubstr("sherd: 1.5 replicas a run are given up"));
  const auto json = nlohmann::json::parse(simulation_json(all));
  EXPECT_EQ(json["replicas_given_up"], 1.5);
}

TEST(SimulationTable, HasEachPolicyAndEachAssumptionOnce) {
  const auto text = simulation_table(
      simulated({sim::FailurePolicy::kSherd, sim::FailurePolicy::kTorchft}));
  EXPECT_THAT(
      text,
      AllOf(
          ContainsRegex("\nsherd .*%"), ContainsRegex("\ntorchft .*%"),
          HasSubstr("first to be used up"), HasSubstr("The log grows by")));
  const auto first = text.find("GPUs in a host");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(text.find("GPUs in a host", first + 1), std::string::npos);
}

TEST(SimulationPage, NeedsNoNetworkAndPlotsAllFour) {
  auto options = short_run();
  options.runs = 1;
  const auto page =
      simulation_page(options, simulated({sim::FailurePolicy::kSherd}));
  EXPECT_THAT(
      page,
      AllOf(
          HasSubstr("<!doctype html>"), HasSubstr("prefers-color-scheme: dark"),
          HasSubstr("spare hosts"), HasSubstr("between failures"),
          HasSubstr("by size"), HasSubstr("stand still"),
          HasSubstr("Assumptions")));
  EXPECT_THAT(
      page,
      AllOf(
          Not(HasSubstr("http")), Not(HasSubstr("<script")),
          Not(ContainsRegex("[>, ]nan"))));
}

TEST(SimulationPage, PlotsReplicasOfAnySizeThatCanBeSimulated) {
  auto options = short_run();
  options.runs = 1;
  options.replicas = 2;
  options.gpus = options.replicas * sim::kReplicaGpusMax;
  EXPECT_THAT(simulation_page(options, {}), HasSubstr("</html>"));
}

// One replica of so many GPUs can be simulated with restarts only.
TEST(SimulationPage, LeavesOutPointsThatCannotBeSimulated) {
  auto options = short_run();
  options.runs = 1;
  options.policy = sim::FailurePolicy::kRestart;
  options.replicas = 1;
  options.gpus = sim::kReplicaGpusMax + 8;
  EXPECT_THAT(
      simulation_page(options, {}),
      AllOf(HasSubstr("class='dot restart'"), HasSubstr("</html>")));
}

}  // namespace
}  // namespace sherd::tools
