// SPDX-License-Identifier: Apache-2.0
//
// `sherd simulate`, as a user calls it.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "support/scratch_folder.h"
#include "support/shell_command.h"

namespace sherd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

test::Outcome simulate(const std::string& arguments) {
  return test::run_in_shell("'" SHERD_COMMAND "' simulate " + arguments);
}

std::string last_line(const std::string& shown) {
  const auto end = shown.find_last_not_of('\n');
  const auto begin = shown.rfind('\n', end);
  return shown.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
}

TEST(SimulateCommand, ReproducesThePublishedCalculation) {
  const auto outcome = simulate(
      "--policy sherd --gpus 98304 --replicas 12 --mtbf-min 18 --stall-min 3 "
      "--down-min 10 --arrivals even --step-s 1 --days 0.15 --json");
  ASSERT_EQ(outcome.exit_status, 0) << outcome.shown;
  const auto json = nlohmann::json::parse(last_line(outcome.shown));
  EXPECT_NEAR(json["effective_training_time"], 0.801, 0.001);
}

TEST(SimulateCommand, PrintsATableAndThenTheObject) {
  const auto outcome = simulate(
      "--policy all --gpus 64 --replicas 4 --mtbf-min 60 --days 0.5 --runs 2");
  ASSERT_EQ(outcome.exit_status, 0) << outcome.shown;
  EXPECT_THAT(outcome.shown, HasSubstr("Assumptions:"));
  const auto json = nlohmann::json::parse(last_line(outcome.shown));
  EXPECT_EQ(json["policies"].size(), 3U);
}

TEST(SimulateCommand, OneSeedGivesOneAnswer) {
  const std::string arguments =
      "--gpus 64 --replicas 4 --mtbf-min 60 --days 1 --runs 3 --seed 5 --json";
  EXPECT_EQ(simulate(arguments).shown, simulate(arguments).shown);
}

TEST(SimulateCommand, WrongUsageExitsWithTwoAndSaysWhy) {
  const auto refused = [](const std::string& arguments) {
    const auto outcome = simulate(arguments);
    EXPECT_EQ(outcome.exit_status, 2) << arguments << "\n" << outcome.shown;
    return outcome.shown;
  };
  EXPECT_THAT(refused("--gpus 100 --replicas 12"), HasSubstr("found 100"));
  EXPECT_THAT(refused("--spares -1"), HasSubstr("found -1"));
  EXPECT_THAT(refused("--mtbf-min 0"), HasSubstr("found 0"));
  EXPECT_THAT(
      refused("--policy all --steps 1000 --stall-min 3"),
      HasSubstr("--steps: expected a --step-s"));
  EXPECT_THAT(refused("--policy raft"), HasSubstr("found 'raft'"));
  EXPECT_THAT(refused("--arrivals never"), HasSubstr("never"));
  EXPECT_THAT(refused("--mtbf-mim 3"), HasSubstr("--mtbf-min"));
  const testing::ScratchFolder scratch;
  const auto page = scratch.path() + "/page.html";
  refused("--gpus 100 --replicas 12 --html " + page);
  EXPECT_FALSE(std::filesystem::exists(page));
}

TEST(SimulateCommand, APageOfASmallClusterIsWritten) {
  const testing::ScratchFolder scratch;
  const auto page = scratch.path() + "/page.html";
  const auto outcome = simulate(
      "--gpus 8 --replicas 2 --step-s 600 --days 10 --runs 1 --html " + page);
  ASSERT_EQ(outcome.exit_status, 0) << outcome.shown;
  std::ostringstream html;
  html << std::ifstream(page).rdbuf();
  EXPECT_THAT(html.str(), HasSubstr("</html>"));
}

TEST(SimulateCommand, APageThatCannotBeWrittenIsAnError) {
  const auto outcome = simulate(
      "--gpus 8 --replicas 1 --policy restart --days 0.1 --mtbf-min 60 "
      "--html /proc/nowhere/page.html");
  EXPECT_NE(outcome.exit_status, 0);
  EXPECT_THAT(outcome.shown, HasSubstr("/proc/nowhere/page.html"));
  EXPECT_THAT(outcome.shown, Not(HasSubstr("Assumptions")));  // At once.
}

}  // namespace
}  // namespace sherd
