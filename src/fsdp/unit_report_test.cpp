// SPDX-License-Identifier: Apache-2.0
#include "fsdp/unit_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sherd/optim/sgd.h>
#include "support/ranks.h"
#include "support/small_models.h"

namespace sherd::fsdp {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

UnitReport report_of_unit(const UnitTimes& times) {
  UnitReport unit;
  unit.name = "h.\"0\"";
  unit.bytes = 512;
  add_use(unit, 7, times);
  return unit;
}

TEST(UnitReport, OverlapIsTheShareOfGatherTimeInWhichNobodyWaited) {
  const auto unit =
      report_of_unit({.gathers = 3, .gathering = 200ms, .waited = 50ms});
  EXPECT_EQ(unit.gathers, 3);
  EXPECT_DOUBLE_EQ(unit.gather_s, 0.2);
  EXPECT_DOUBLE_EQ(unit.waited_s, 0.05);
  EXPECT_DOUBLE_EQ(unit.overlap, 0.75);
}

TEST(UnitReport, OverlapIsNeverNegative) {
  EXPECT_EQ(report_of_unit({.gathering = 10ms, .waited = 30ms}).overlap, 0.0);
  EXPECT_EQ(report_of_unit({.waited = 30ms}).overlap, 0.0);
}

TEST(ShardReportText, HasALineForEachUnitAndOneForAll) {
  ShardReport report;
  report.by_unit = {
      report_of_unit({.gathers = 2, .gathering = 100ms, .waited = 25ms}),
      report_of_unit({.gathers = 1})};
  const auto text = to_text(report);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << text;
  EXPECT_THAT(text, HasSubstr("75.0 %"));
  EXPECT_THAT(text, HasSubstr("1024        14         3"));
}

TEST(ShardReportJson, NamesEveryFigure) {
  ShardReport report;
  report.units = 1;
  report.plan.deviations = 5;
  report.by_unit = {
      report_of_unit({.gathers = 2, .gathering = 100ms, .waited = 25ms})};
  report.by_unit[0].keep_whole = true;
  report.by_unit[0].flats = {
      {.parameters = {"h.0.weight", "h.0.bias"},
       .numel = 128,
       .param_dtype = at::kBFloat16}};
  report.memory.limit_bytes = 1000;
  report.memory.choices = {{.limit_bytes = 2000, .recomputed = 3}};
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["units"], 1);
  EXPECT_EQ(json["memory"]["limit_bytes"], 1000);
  EXPECT_EQ(json["memory"]["decided"], false);
  EXPECT_EQ(json["memory"]["choices"].at(0)["recomputed"], 3);
  EXPECT_EQ(json["plan"]["deviations"], 5);
  const auto& unit = json["by_unit"].at(0);
  EXPECT_EQ(unit["name"], "h.\"0\"");
  EXPECT_EQ(unit["bytes"], 512);
  EXPECT_EQ(unit["keep_whole"], true);
  const auto& flat = unit["flats"].at(0);
  EXPECT_EQ(flat["parameters"].at(1), "h.0.bias");
  EXPECT_EQ(flat["numel"], 128);
  EXPECT_EQ(flat["param_dtype"], "BFloat16");
  EXPECT_EQ(flat["trainable"], true);
  EXPECT_EQ(unit["visits"], 7);
  EXPECT_EQ(unit["gathers"], 2);
  EXPECT_DOUBLE_EQ(unit["overlap"], 0.75);
}

}  // namespace
}  // namespace sherd::fsdp
