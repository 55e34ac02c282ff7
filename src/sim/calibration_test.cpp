// SPDX-License-Identifier: Apache-2.0
//
// The simulation must reproduce what was calculated and published about other systems, with nothing
// fitted: the table of specification 6.3, and the runs of torchft.
#include <cmath>
#include <ostream>
#include <string>
#include <gtest/gtest.h>
#include "sim/simulate.h"

namespace sherd::sim {
namespace {

// In minutes and per cent. `evenly` was calculated; others have simulated `randomly` for 200,000
// hours.
struct Row {
  const char* name;
  int replicas;
  double mtbf;
  double stall;
  double down;
  double rejoin;
  double evenly;
  double randomly;
  double two_replicas = 0;
  double whole_job = 0;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

constexpr double kUnknown = -1;

constexpr Row kRows[] = {
    {"sync, warm", 1, 18, 10, 10, 0, 44.4, 57.4},
    {"FT-HSDP as published", 12, 18, 3, 10, 0, 80.1, 82.4},
    {"and a rejoin stall", 12, 18, 3, 10, 1.67, 70.8, 74.4},
    {"D counted after the stall", 12, 18, 3, 13, 0, 78.7, 81.5},
    {"two defects fixed", 12, 18, 1.5, 10, 0, 87.7, 88.7},
    {"fixed, with a rejoin stall", 12, 18, 1.5, 10, 1.67, 78.5, 80.6},
    {"stall 10 s", 12, 18, 0.17, 10, 0, 94.5, 94.7},
    {"stall 2 s", 12, 18, 0.03, 10, 0, 95.2, 95.3},
    {"stall 2 s, hot spare", 12, 18, 0.03, 2, 0, 98.9, 98.9},
    {"and p 5 %, c 1 %", 12, 18, 0.03, 2, 0, 98.3, 98.3, 0.05, 0.01},
    {"and p 5 %, c 5 %", 12, 18, 0.03, 2, 0, 96.1, 96.2, 0.05, 0.05},
    {"131K, published stages", 16, 13.5, 3, 10, 0, 74.5, 78.1},
    {"131K, 5 s and 3 min", 16, 13.5, 0.083, 3, 0, 98.0, 98.1},
    {"Llama 3's rate, sync", 1, 31, 10, 10, 0, 67.7, 72.4},
    {"Llama 3's rate", 12, 31, 3, 10, 0, 88.4, 89.3},
    {"rate 2.3, sync", 1, 50, 10, 10, 0, 80.0, 81.9},
    {"rate 2.3", 12, 50, 3, 10, 0, 92.8, 93.2},
    {"3 min, R 4", 4, 18, 3, 10, 0, 73.6, kUnknown},
    {"3 min, R 8", 8, 18, 3, 10, 0, 78.5, kUnknown},
    {"3 min, R 16", 16, 18, 3, 10, 0, 80.9, kUnknown},
    {"3 min, R 24", 24, 18, 3, 10, 0, 81.7, kUnknown},
    {"3 min, R 48", 48, 18, 3, 10, 0, 82.5, kUnknown},
    {"3 min, R 96", 96, 18, 3, 10, 0, 82.9, kUnknown},
    {"5 s, R 4", 4, 18, 5.0 / 60, 10, 0, 85.8, kUnknown},
    {"5 s, R 8", 8, 18, 5.0 / 60, 10, 0, 92.7, kUnknown},
    {"5 s, R 12", 12, 18, 5.0 / 60, 10, 0, 94.9, kUnknown},
    {"5 s, R 16", 16, 18, 5.0 / 60, 10, 0, 96.1, kUnknown},
    {"5 s, R 24", 24, 18, 5.0 / 60, 10, 0, 97.2, kUnknown},
    {"5 s, R 48", 48, 18, 5.0 / 60, 10, 0, 98.4, kUnknown},
    {"5 s, R 96", 96, 18, 5.0 / 60, 10, 0, 99.0, kUnknown},
    {"5 s, D 3, R 4", 4, 18, 5.0 / 60, 3, 0, 95.5, kUnknown},
    {"5 s, D 3, R 8", 8, 18, 5.0 / 60, 3, 0, 97.5, kUnknown},
    {"5 s, D 3, R 12", 12, 18, 5.0 / 60, 3, 0, 98.2, kUnknown},
    {"5 s, D 3, R 16", 16, 18, 5.0 / 60, 3, 0, 98.5, kUnknown},
    {"5 s, D 3, R 24", 24, 18, 5.0 / 60, 3, 0, 98.9, kUnknown},
    {"5 s, D 3, R 48", 48, 18, 5.0 / 60, 3, 0, 99.2, kUnknown},
    {"5 s, D 3, R 96", 96, 18, 5.0 / 60, 3, 0, 99.4, kUnknown},
};

constexpr double kMinutesPerDay = 1440;

SimulationOptions options_of(const Row& row, double failures) {
  SimulationOptions options;
  options.policy =
      row.replicas == 1 ? FailurePolicy::kRestart : FailurePolicy::kSherd;
  options.replicas = row.replicas;
  options.gpus = 8 * row.replicas;
  options.step_s = 0.5;  // The formulas know no steps.
  options.mtbf_min = row.mtbf;
  options.stall_min = row.stall;
  options.down_min = row.down;
  options.rejoin_min = row.rejoin;
  options.two_replica_share = row.two_replicas;
  options.whole_job_share = row.whole_job;
  options.days = failures * row.mtbf / kMinutesPerDay;
  return options;
}

double effective_at_random(const Row& row, double failures, int runs) {
  auto options = options_of(row, failures);
  options.runs = runs;
  const auto result = simulate(options);
  // The cost of one failure converges sooner than their number, so this scales as if there had been
  // the average number of failures.
  return 100 *
      std::pow(result.effective_training_time, failures / result.failures);
}

class Calibration : public ::testing::TestWithParam<Row> {};

TEST_P(Calibration, EvenFailuresGiveWhatTheFormulaGives) {
  const auto& row = GetParam();
  // The counts of failures that affect more than one replica are whole numbers.
  auto options = options_of(row, row.whole_job > 0 ? 100 : 5);
  options.arrivals = Arrivals::kEven;
  EXPECT_NEAR(100 * simulate(options).effective_training_time, row.evenly, 0.1);
}

TEST_P(Calibration, RandomFailuresGiveWhatOthersHaveSimulated) {
  const auto& row = GetParam();
  if (row.randomly == kUnknown) {
    return;  // Only the formula's value is known.
  }
  // Large failures are rare, and vary more.
  const auto effective = row.replicas == 1 ? effective_at_random(row, 20000, 4)
      : row.whole_job > 0                  ? effective_at_random(row, 1000, 3)
                                           : effective_at_random(row, 300, 2);
  EXPECT_NEAR(effective, row.randomly, 0.5);
}

// Run by `make soak`, without any correction.
TEST_P(Calibration, DISABLED_ManyRandomFailuresGiveWhatOthersHaveSimulated) {
  const auto& row = GetParam();
  if (row.randomly == kUnknown) {
    return;
  }
  auto options = options_of(row, row.replicas == 1 ? 100000 : 2000);
  options.runs = 10;
  EXPECT_NEAR(
      100 * simulate(options).effective_training_time, row.randomly, 0.5);
}

INSTANTIATE_TEST_SUITE_P(
    Table, Calibration, ::testing::ValuesIn(kRows), [](const auto& of) {
      return "Row" + std::to_string(of.index);
    });

// 300 L40S in 30 groups: 5145 of 6249 steps were committed, later 268 of 888. It is not published
// how long a group was away; the time between failures counts those that happened.
SimulationOptions torchft_run(double mtbf_s, double step_s) {
  SimulationOptions options;
  options.policy = FailurePolicy::kTorchft;
  options.replicas = 30;
  options.gpus = 300;
  options.gpus_per_host = 10;
  options.step_s = step_s;
  options.mtbf_min = mtbf_s / 60;
  options.stall_min = 0;  // It is included in the step's time.
  options.down_min = 0;
  options.days = 20;
  options.runs = 2;
  return options;
}

double commit_rate(const SimulationOptions& options) {
  const auto result = simulate(options);
  return 100 * result.commits / (result.commits + result.discarded_steps);
}

TEST(TorchftCalibration, CommitsAsManyStepsAsThePublishedRuns) {
  EXPECT_NEAR(commit_rate(torchft_run(62, 10.9)), 82.3, 2);
  EXPECT_NEAR(commit_rate(torchft_run(13.5, 15.46)), 30.2, 2);
}

}  // namespace
}  // namespace sherd::sim
