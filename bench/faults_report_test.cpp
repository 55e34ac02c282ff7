// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "support/error_of.h"

namespace sherd::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const BenchmarkContext kCircumstances{
    .sherd_version = "0.1.0",
    .commit = "abc",
    .build = "Release",
    .machine = "a machine"};

FaultMetrics of_rank(double gap_s, std::optional<double> throughput) {
  return {
      .kill = {.replica = 1, .rank = 1, .time_s = 10.0, .usual_s = 0.25},
      .gap_s = gap_s,
      .restart_s = 0.5,
      .return_s = 3.0,
      .throughput = throughput};
}

FaultMetrics of_coordinator(double gap_s) {
  return {
      .kill = {.target = InjectedKill::Target::kCoordinator, .usual_s = 0.25},
      .gap_s = gap_s};
}

FaultsResult well() {
  return {
      .faults =
          {of_rank(0.5, 0.95), of_rank(0.75, std::nullopt), of_coordinator(1.5),
           of_rank(5.0, 1.0)},
      .step_s = 0.25,
      .simulated_gaps_s = {0.5, 1.0},
      .discarded_steps = 0,
      .hashes = {.compared = 9, .divergences = 0},
      .steps = 77,
      .seconds = 12.0};
}

CostResult cost(double ratio, int rounds) {
  CostResult result;
  for (int i = 0; i < rounds; ++i) {
    result.plain_ms.push_back(100.0 + i);
    result.fault_tolerant_ms.push_back(ratio * (100.0 + i));
  }
  result.block_steps = 5;
  result.why_stopped = "it is a test";
  return result;
}

nlohmann::json parsed(const FaultsResult& result) {
  const auto text = json_of(FaultsConfig(), result, kCircumstances);
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  return nlohmann::json::parse(text);
}

TEST(FaultsReport, JsonHasTheListsAndThatBarsAreMet) {
  const auto json = parsed(well());

  EXPECT_EQ(json["step_s"], 0.25);
  EXPECT_EQ(json["gap_s"], (std::vector<double>{0.5, 0.75, 5.0}));
  EXPECT_EQ(json["gap_s_median"], 0.75);
  EXPECT_EQ(json["gap_s_simulated_median"], 0.75);
  EXPECT_EQ(json["gap_s_max"], 1.0);
  EXPECT_EQ(json["coordinator_gap_s"], std::vector<double>{1.5});
  EXPECT_EQ(json["return_s"], (std::vector<double>{3.0, 3.0, 3.0}));
  EXPECT_EQ(json["restart_s"], (std::vector<double>{0.5, 0.5, 0.5}));
  EXPECT_EQ(json["throughput_while_returning"].dump(), "[0.95,null,1.0]");
  EXPECT_EQ(json["discarded_steps"], 0);
  EXPECT_EQ(json["divergences"], 0);
  EXPECT_EQ(json["states_compared"], 9);
  EXPECT_EQ(json["bars_met"], true);
  EXPECT_EQ(json["seed"], 1);
}

TEST(FaultsReport, EachBarCanBeMissed) {
  auto slow = well();
  slow.faults[0].gap_s = 1.5;
  slow.faults[1].gap_s = 1.5;
  EXPECT_EQ(parsed(slow)["gap_met"], false);
  EXPECT_EQ(parsed(slow)["bars_met"], false);

  auto waits = well();
  waits.faults[2].gap_s = 2.5;
  EXPECT_EQ(parsed(waits)["coordinator_gap_met"], false);
  EXPECT_EQ(parsed(waits)["bars_met"], false);

  auto busy = well();
  busy.faults[0].throughput = 0.5;
  EXPECT_EQ(parsed(busy)["throughput_met"], false);
  EXPECT_EQ(parsed(busy)["bars_met"], false);
}

TEST(FaultsReport, WhatIsLostIsABarToo) {
  auto discards = well();
  discards.discarded_steps = 1;
  auto diverges = well();
  diverges.hashes.divergences = 1;
  auto loses = well();
  loses.faults[2].survivors_lost = 1;
  for (const auto& result : {discards, diverges, loses}) {
    EXPECT_EQ(parsed(result)["nothing_lost"], false);
    EXPECT_EQ(parsed(result)["bars_met"], false);
  }
}

TEST(FaultsReport, WithoutKillsNothingIsMissed) {
  FaultsResult quiet = well();
  quiet.faults.clear();
  const auto json = parsed(quiet);

  EXPECT_EQ(json["gap_s"], nlohmann::json::array());
  EXPECT_TRUE(json["gap_s_median"].is_null());
  EXPECT_TRUE(json["gap_met"].is_null());
  EXPECT_TRUE(json["coordinator_gap_met"].is_null());
  EXPECT_TRUE(json["throughput_met"].is_null());
  EXPECT_EQ(json["bars_met"], true);
}

TEST(FaultsReport, TheTableNamesEachKill) {
  const auto text = table_of(FaultsConfig(), well(), kCircumstances);

  EXPECT_THAT(text, HasSubstr("replica 1, rank 1     0.250    0.500"));
  EXPECT_THAT(text, HasSubstr("coordinator           0.250    1.500"));
  EXPECT_THAT(text, HasSubstr("0.750 (open) s, at most 1.00: met"));
  EXPECT_THAT(text, HasSubstr("s, the measured one is 1.00 of it"));
  EXPECT_THAT(text, HasSubstr("0 of 9 states compared: met"));
  EXPECT_THAT(text, HasSubstr("seed 1"));
}

TEST(FaultsReport, TheCostIsMetByTheLowerEndOfItsInterval) {
  const auto json = [](const CostResult& result) {
    return nlohmann::json::parse(
        json_of(FaultsConfig(), result, kCircumstances));
  };
  EXPECT_EQ(json(cost(1.25, 8))["cost_ratio"], 1.25);
  EXPECT_EQ(json(cost(1.25, 8))["cost_met"], false);
  EXPECT_EQ(json(cost(1.01, 8))["cost_met"], true);
  // An open or wide interval proves nothing.
  EXPECT_TRUE(json(cost(1.01, 5))["cost_met"].is_null());
  auto noisy = cost(1.0, 8);
  noisy.fault_tolerant_ms[0] *= 1.5;
  noisy.fault_tolerant_ms[1] *= 1.5;
  EXPECT_TRUE(json(noisy)["cost_met"].is_null());
  EXPECT_THAT(
      table_of(FaultsConfig(), cost(1.25, 8), kCircumstances),
      HasSubstr("1.250 (1.250-1.250), its lower end at most 1.02: NOT met"));
}

TEST(FaultsConfig, WrongFlagsAreNamed) {
  const auto refusal = [](const FaultsConfig& config) {
    return test::error_of([&] { check(config); });
  };
  EXPECT_EQ(refusal({}), "no error");
  EXPECT_THAT(refusal({.work = "huge"}), HasSubstr("--work"));
  EXPECT_THAT(
      refusal({.shape = {.replicas = 1, .ranks = 2}}), HasSubstr("--replicas"));
  EXPECT_THAT(
      refusal({.shape = {.replicas = 3, .ranks = 0}}), HasSubstr("--ranks"));
  EXPECT_THAT(refusal({.kills = -1}), HasSubstr("--kills"));
  EXPECT_THAT(refusal({.target = "all"}), HasSubstr("--target"));
  EXPECT_THAT(refusal({.exchange = "mail"}), HasSubstr("--exchange"));
  EXPECT_THAT(refusal({.block_steps = 7}), HasSubstr("--block-steps"));
}

TEST(FaultsConfig, TheBatchIsTheWorksUnlessGiven) {
  EXPECT_EQ(workload_of({.work = "small"}).batch, 4);
  EXPECT_EQ(workload_of({.work = "small", .batch = 9}).batch, 9);
}

}  // namespace
}  // namespace sherd::bench
