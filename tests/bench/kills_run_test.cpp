// SPDX-License-Identifier: Apache-2.0
//
// The built `sherd bench faults` for a kill or two. Nothing here looks at speed: a
// machine that runs tests has no figures to offer.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "base/clock.h"
#include "bench/bench_result.h"
#include "support/scratch_folder.h"

namespace sherd {
namespace {

using test::bench_result;
using test::Outcome;
using ::testing::HasSubstr;

const std::string kBench = "'" SHERD_COMMAND "' bench faults --work tiny ";

Outcome bench_faults(const std::string& arguments) {
  return test::run_in_shell(kBench + arguments);
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
      bench_faults("--replicas 2 --ranks 2 --kills 1 --target both --seed 7");

  const auto json = bench_result(outcome);
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
  const auto outcome = bench_faults(
      "--cost --replicas 2 --ranks 1 --rounds-max 2 --block-steps 2");

  const auto json = bench_result(outcome);
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
      bench_faults("--replicas 2 --ranks 1 --kills 0 --folder '" + kept + "'");

  EXPECT_EQ(outcome.exit_status, 0) << outcome.shown;
  EXPECT_TRUE(std::filesystem::exists(kept + "/log"));
  const auto again = bench_faults("--kills 0 --folder '" + kept + "'");
  EXPECT_NE(again.exit_status, 0);
  EXPECT_THAT(again.shown, HasSubstr("expected an empty one"));
}

TEST(BenchKills, AnInterruptEndsAllRanks) {
  const testing::ScratchFolder folder;
  const std::string kept = folder.path() + "/kept";

  // As a terminal would, all of them: when one was killed and its next life began.
  const auto outcome = test::run_in_shell(
      "(until [ $(ls '" + kept +
      "' | grep -c '[.]life-') -gt 2 ]; do"
      " kill -0 $$ || exit; sleep 0.1; done; kill -INT $$) >/dev/null 2>&1 &"
      " exec timeout --preserve-status -s INT 100 " +
      kBench + "--replicas 2 --ranks 1 --kills 1000 --folder '" + kept + "'");

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
  EXPECT_GE(ranks, 3);  // Lives: kills may have made more.
}

}  // namespace
}  // namespace sherd
