// SPDX-License-Identifier: Apache-2.0
//
// The built `sherd bench faults` for a kill or two. Nothing here looks at speed: a
// machine that runs tests has no figures to offer.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "base/clock.h"
#include "support/scratch_folder.h"
#include "support/shell_command.h"

namespace sherd {
namespace {

using test::Outcome;
using ::testing::HasSubstr;

Outcome bench(const std::string& arguments, const std::string& before = "") {
  return test::run_in_shell(
      before + " '" SHERD_COMMAND "' bench faults --work tiny " + arguments);
}

// The last line.
nlohmann::json result_of(const Outcome& outcome) {
  std::istringstream lines(outcome.shown);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    last = line;
  }
  return nlohmann::json::parse(last, nullptr, /*allow_exceptions=*/false);
}

// The kernel ends ranks when their launcher is gone, which takes a moment. One that
// has ended has no command line.
bool ends(const std::string& process) {
  const SteadyClock clock;
  const auto deadline = clock.now() + std::chrono::seconds(10);
  do {
    std::ifstream command("/proc/" + process + "/cmdline");
    if (command.peek() == std::ifstream::traits_type::eof()) {
      return true;
    }
    std::this_thread::yield();
  } while (clock.now() < deadline);
  return false;
}

TEST(BenchKills, AReplicaAndTheCoordinatorComeBackAndNothingIsLost) {
  const auto outcome =
      bench("--replicas 2 --ranks 2 --kills 1 --target both --seed 7");

  EXPECT_EQ(outcome.exit_status, 0) << outcome.shown;
  const auto json = result_of(outcome);
  ASSERT_TRUE(json.is_object()) << outcome.shown;
  EXPECT_GT(json["step_s"], 0.0);
  EXPECT_EQ(json["gap_s"].size(), 1U);
  EXPECT_EQ(json["coordinator_gap_s"].size(), 1U);
  EXPECT_GT(json["return_s"][0], json["restart_s"][0]);
  EXPECT_EQ(json["discarded_steps"], 0) << outcome.shown;
  EXPECT_EQ(json["divergences"], 0) << outcome.shown;
  EXPECT_GT(json["states_compared"], 20) << outcome.shown;
  EXPECT_THAT(outcome.shown, HasSubstr("seed 7"));
}

TEST(BenchKills, TheCostIsARatioToPlainSharding) {
  const auto outcome =
      bench("--cost --replicas 2 --ranks 1 --rounds-max 2 --block-steps 2");

  EXPECT_EQ(outcome.exit_status, 0) << outcome.shown;
  const auto json = result_of(outcome);
  ASSERT_TRUE(json.is_object()) << outcome.shown;
  EXPECT_GT(json["plain_ms"], 0.0);
  EXPECT_GT(json["cost_ratio"], 0.0);
  EXPECT_EQ(json["rounds"], 2);
  EXPECT_TRUE(json["cost_met"].is_null());  // Two rounds are too few.
}

TEST(BenchKills, FilesStayWhereTheyAreAskedFor) {
  const testing::ScratchFolder folder;
  const std::string kept = folder.path() + "/kept";

  const auto outcome =
      bench("--replicas 2 --ranks 1 --kills 0 --folder '" + kept + "'");

  EXPECT_EQ(outcome.exit_status, 0) << outcome.shown;
  EXPECT_TRUE(std::filesystem::exists(kept + "/log"));
  const auto again = bench("--kills 0 --folder '" + kept + "'");
  EXPECT_NE(again.exit_status, 0);
  EXPECT_THAT(again.shown, HasSubstr("expected an empty one"));
}

TEST(BenchKills, AnInterruptEndsAllRanks) {
  const testing::ScratchFolder folder;
  const std::string kept = folder.path() + "/kept";

  const auto outcome = bench(
      "--replicas 2 --ranks 1 --kills 1000 --folder '" + kept + "'",
      "timeout --preserve-status -s INT 15");

  EXPECT_EQ(outcome.exit_status, 130) << outcome.shown;
  EXPECT_THAT(outcome.shown, HasSubstr("every rank has been ended"));
  int ranks = 0;
  for (const auto& file : std::filesystem::directory_iterator(kept)) {
    const auto name = file.path().filename().string();
    if (const auto at = name.find(".life-"); at != std::string::npos) {
      ++ranks;
      EXPECT_TRUE(ends(name.substr(at + 6))) << name;
    }
  }
  EXPECT_GE(ranks, 2);  // Lives: kills made more.
}

}  // namespace
}  // namespace sherd
