// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace sherd::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ContenderResult measured(const std::string& name, double ms, int rounds) {
  ContenderResult result{
      .name = name,
      .torch_version = "2.13.0",
      .step_ms = {},
      .round_ms = {},
      .pss_bytes_peak = 3 << 20,
      .faults = 80,
      .cpu_ms = 960,
      .rank_steps = 8};
  for (int round = 0; round < rounds; ++round) {
    result.round_ms.push_back(ms * (1 + 0.01 * round));
  }
  result.step_ms = result.round_ms;
  return result;
}

StepResult result_of(int rounds) {
  StepResult result;
  result.contenders = {
      measured("bound", 100, rounds), measured("sherd", 150, rounds),
      measured("ddp", 300, rounds)};
  result.block_steps = 4;
  result.rounds = rounds;
  result.why_stopped = "it is a test";
  return result;
}

constexpr int kRounds = 7;
const BenchmarkContext kCircumstances{
    .sherd_version = "0.1.0",
    .commit = "abc",
    .build = "Release",
    .machine = "a machine"};

TEST(Report, JsonHasTimesRatiosAndIntervals) {
  const auto text = json_of({}, result_of(kRounds), kCircumstances);
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  const auto json = nlohmann::json::parse(text);
  EXPECT_DOUBLE_EQ(json["bound_ms"], 103.0);
  EXPECT_DOUBLE_EQ(json["bound_ms_low"], 100.0);
  EXPECT_DOUBLE_EQ(json["sherd_ms_high"], 159.0);
  for (const char* end : {"", "_low", "_high"}) {
    EXPECT_DOUBLE_EQ(json[std::string("sherd_ratio") + end], 1.5);
    EXPECT_DOUBLE_EQ(json[std::string("ddp_ratio") + end], 3.0);
    EXPECT_DOUBLE_EQ(json[std::string("sherd_to_ddp") + end], 0.5);
    for (const char* absent : {"fsdp2_ms", "fsdp2_ratio", "sherd_to_fsdp2"}) {
      EXPECT_TRUE(json.at(std::string(absent) + end).is_null()) << absent;
    }
  }
  EXPECT_EQ(json["sherd_pss_bytes"], 3 << 20);
  EXPECT_DOUBLE_EQ(json["sherd_faults"], 10.0);
  EXPECT_DOUBLE_EQ(json["sherd_cpu_ms"], 120.0);
  EXPECT_EQ(json["work"], "wide");
  EXPECT_TRUE(json["budget_bytes"].is_null());
  EXPECT_EQ(json["why_stopped"], "it is a test");
}

TEST(Report, PythonIsComparedWithAllOthers) {
  auto result = result_of(kRounds);
  result.contenders.insert(
      result.contenders.begin() + 2, measured("python", 165, kRounds));
  const auto json = nlohmann::json::parse(json_of({}, result, kCircumstances));
  EXPECT_DOUBLE_EQ(json["python_ratio"], 1.65);
  EXPECT_DOUBLE_EQ(json["python_to_sherd"], 1.1);
  EXPECT_DOUBLE_EQ(json["python_to_ddp"], 0.55);
  EXPECT_TRUE(json.at("python_to_fsdp2").is_null());
  EXPECT_EQ(json["python_torch"], "2.13.0");
  EXPECT_THAT(
      table_of({}, result, kCircumstances),
      AllOf(
          HasSubstr("python / sherd 1.100  (1.100-1.100)"),
          HasSubstr("python / ddp   0.550  (0.550-0.550)")));
}

TEST(Report, AnOpenIntervalIsNull) {
  const auto json =
      nlohmann::json::parse(json_of({}, result_of(3), kCircumstances));
  EXPECT_DOUBLE_EQ(json["sherd_ratio"], 1.5);
  EXPECT_TRUE(json.at("sherd_ratio_low").is_null());
  EXPECT_TRUE(json.at("bound_ms_high").is_null());
}

TEST(Report, TheTableShowsEachContenderAndItsRatio) {
  const auto table = table_of({}, result_of(kRounds), kCircumstances);
  EXPECT_THAT(
      table,
      AllOf(
          HasSubstr("43.0 million parameters"),
          HasSubstr("2 ranks, fp32, full_shard"), HasSubstr("a machine"),
          HasSubstr("it is a test"),
          HasSubstr("bound      103.00  100.00-106.00"),
          HasSubstr("1.500  1.500-1.500"),
          HasSubstr("sherd / ddp   0.500  (0.500-0.500)"),
          Not(HasSubstr("fsdp2"))));
}

}  // namespace
}  // namespace sherd::bench
