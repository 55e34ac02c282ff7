// SPDX-License-Identifier: Apache-2.0
#include "sim/simulate.h"
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>

namespace sherd::sim {
namespace {

using ::testing::HasSubstr;

// Two days of a small cluster that fails every hour, with all the ways in which sherd reacts.
SimulationOptions few_hosts() {
  SimulationOptions options;
  options.gpus = 64;
  options.replicas = 4;
  options.step_s = 5;
  options.days = 2;
  options.mtbf_min = 60;
  options.runs = 2;
  options.two_replica_share = 0.1;
  return options;
}

void expect_same(const SimulationResult& a, const SimulationResult& b) {
  EXPECT_DOUBLE_EQ(a.effective_training_time, b.effective_training_time);
  EXPECT_DOUBLE_EQ(a.low, b.low);
  EXPECT_DOUBLE_EQ(a.stall_share, b.stall_share);
  EXPECT_DOUBLE_EQ(a.commits, b.commits);
  EXPECT_DOUBLE_EQ(a.discarded_steps, b.discarded_steps);
  EXPECT_DOUBLE_EQ(a.epochs, b.epochs);
  ASSERT_EQ(a.traffic.has_value(), b.traffic.has_value());
  if (a.traffic) {
    EXPECT_DOUBLE_EQ(
        a.traffic->coordinator_messages_per_s,
        b.traffic->coordinator_messages_per_s);
    EXPECT_DOUBLE_EQ(
        a.traffic->log_records_per_s, b.traffic->log_records_per_s);
  }
}

// Rings of four and more members avoid it once it is noticed. Of two replicas only one can train.
TEST(Simulate, ADeadLinkCostsAsMuchAsRingsCannotGoRound) {
  auto options = few_hosts();
  options.two_replica_share = 0;
  options.mtbf_min = 10;
  options.runs = 1;
  options.days = 1;
  const auto lost_to_links = [&](int replicas) {
    options.replicas = replicas;
    options.link_down_min = 0;
    const auto without = simulate(options);
    options.link_down_min = 60;
    return without.effective_training_time -
        simulate(options).effective_training_time;
  };
  const double of_two = lost_to_links(2);
  EXPECT_GT(of_two, 0.05);
  EXPECT_LT(lost_to_links(8), of_two / 8);
}

// The next failures come long before the first has ended.
TEST(Simulate, ALinkIsBackWhenItsLastFailureHasEnded) {
  auto options = few_hosts();
  options.replicas = 2;
  options.two_replica_share = 0;
  options.mtbf_min = 10;
  options.runs = 1;
  options.days = 4;
  options.step_s = 20;
  options.link_down_min = 1000;
  options.down_min = 0.5;
  // Of two replicas only one trains while the link is down, which is nearly always.
  EXPECT_LT(simulate(options).effective_training_time, 0.6);
}

TEST(Simulate, StepsMadeAsOneGiveTheSameAsEachByItself) {
  for (const bool stages : {true, false}) {
    auto options = few_hosts();
    options.days = 0.3;
    options.mtbf_min = 30;
    if (!stages) {
      options.stall_min = 0.5;
      options.rejoin_min = 0.25;
      options.whole_job_share = 0.05;
      options.checkpoint_min = 7;
    }
    const auto few = simulate(options);
    options.every_step = true;
    expect_same(few, simulate(options));
  }
}

TEST(Simulate, ThreadsChangeNothing) {
  auto options = few_hosts();
  options.runs = 4;
  options.threads = 1;
  const auto one = simulate(options);
  options.threads = 3;
  expect_same(one, simulate(options));
}

TEST(Simulate, AnotherSeedIsAnotherCourse) {
  auto options = few_hosts();
  const auto one = simulate(options);
  options.seed = 1000;
  EXPECT_NE(
      one.effective_training_time, simulate(options).effective_training_time);
}

TEST(Simulate, WithoutFailuresNothingIsLost) {
  for (const auto policy : {FailurePolicy::kRestart, FailurePolicy::kTorchft}) {
    auto options = few_hosts();
    options.policy = policy;
    options.mtbf_min = 1e9;
    const auto result = simulate(options);
    EXPECT_GT(result.effective_training_time, 0.9998);
    EXPECT_LE(result.effective_training_time, 1);
  }
}

// The same failures cost least if no step is lost and no replica waits.
TEST(Simulate, PoliciesComeInTheOrderOfWhatTheyLose) {
  auto options = few_hosts();
  options.policy = FailurePolicy::kRestart;
  const auto restart = simulate(options);
  options.policy = FailurePolicy::kTorchft;
  const auto torchft = simulate(options);
  options.policy = FailurePolicy::kSherd;
  const auto sherd = simulate(options);
  EXPECT_LT(restart.effective_training_time, torchft.effective_training_time);
  EXPECT_LT(torchft.effective_training_time, sherd.effective_training_time);
  EXPECT_DOUBLE_EQ(restart.failures, sherd.failures);
  EXPECT_DOUBLE_EQ(torchft.failures, sherd.failures);
  EXPECT_EQ(sherd.discarded_steps, 0);
  EXPECT_GT(torchft.discarded_steps, 0);
}

TEST(Simulate, MoreSparesAreNeverWorse) {
  auto options = few_hosts();
  options.mtbf_min = 240;
  options.repair_h = 24;
  options.days = 20;
  double last = 0;
  for (const int spares : {0, 2, 8, 32}) {
    options.spares = spares;
    const auto result = simulate(options);
    EXPECT_GE(result.effective_training_time, last) << spares;
    last = result.effective_training_time;
  }
  options.spares.reset();
  EXPECT_DOUBLE_EQ(simulate(options).effective_training_time, last);
}

// All replicas restart from a checkpoint: the steps since then are lost.
TEST(Simulate, AFailureOfTheWholeJobCostsTheStepsSinceTheCheckpoint) {
  auto options = few_hosts();
  options.stall_min = 0;
  options.two_replica_share = 0;
  options.whole_job_share = 1;
  options.mtbf_min = 240;
  const auto kept = simulate(options);
  EXPECT_EQ(kept.discarded_steps, 0);
  options.checkpoint_min = 60;
  const auto lost = simulate(options);
  EXPECT_DOUBLE_EQ(lost.failures, kept.failures);
  EXPECT_GT(lost.discarded_steps, 0);
  EXPECT_LT(lost.effective_training_time, kept.effective_training_time);
}

TEST(Simulate, TorchftGoesBackToItsCheckpoint) {
  auto options = few_hosts();
  options.policy = FailurePolicy::kTorchft;
  options.whole_job_share = 1;
  options.mtbf_min = 240;
  const auto kept = simulate(options);
  options.checkpoint_min = 60;
  const auto lost = simulate(options);
  EXPECT_DOUBLE_EQ(lost.failures, kept.failures);
  EXPECT_GT(lost.discarded_steps, kept.discarded_steps + 100);
  EXPECT_LT(lost.effective_training_time, kept.effective_training_time);
}

TEST(Simulate, TorchftWaitsForTheFewestReplicasThatMakeAStep) {
  auto options = few_hosts();
  options.policy = FailurePolicy::kTorchft;
  const auto any = simulate(options);
  EXPECT_EQ(any.too_few_share, 0);
  options.replicas_min = options.replicas;
  const auto all = simulate(options);
  EXPECT_GT(all.too_few_share, 0.05);
  EXPECT_LT(all.commits, any.commits);
  EXPECT_LT(all.effective_training_time, any.effective_training_time);
}

TEST(Simulate, AStepThatEndsTooLateDoesNotCount) {
  for (const auto policy : {FailurePolicy::kRestart, FailurePolicy::kTorchft}) {
    auto options = few_hosts();
    options.policy = policy;
    options.mtbf_min = 1e9;
    options.days = 9.0 / 86400;  // One step of 5 s, and most of another.
    EXPECT_EQ(simulate(options).commits, 1) << static_cast<int>(policy);
  }
}

TEST(Simulate, TrafficIsThatOfTheSimulatedTimeOnly) {
  auto options = few_hosts();
  options.mtbf_min = 1e9;
  options.days = 0.01;
  const auto of_short = *simulate(options).traffic;
  options.days = 0.1;
  const auto of_long = *simulate(options).traffic;
  EXPECT_NEAR(
      of_short.coordinator_messages_per_s / of_long.coordinator_messages_per_s,
      1, 0.01);
  EXPECT_NEAR(
      of_short.coordinator_in_bytes_per_s / of_long.coordinator_in_bytes_per_s,
      1, 0.01);
}

// Counted like in the launcher. Each of two replicas fails every four minutes, a third of the times
// with its host, whose successor starts the count again.
TEST(Simulate, AReplicaWhoseRestartsAreSpentIsGivenUp) {
  auto options = few_hosts();
  options.replicas = 2;
  options.arrivals = Arrivals::kEven;
  options.mtbf_min = 2;
  options.down_min = 0.5;
  options.days = 0.1;
  options.two_replica_share = 0;
  const auto none = simulate(options);
  EXPECT_EQ(none.replicas_given_up, 0);
  options.restarts_max = 1;
  options.restart_window_s = 230;
  const auto in_time = simulate(options);
  EXPECT_EQ(in_time.replicas_given_up, 0);
  EXPECT_DOUBLE_EQ(
      in_time.effective_training_time, none.effective_training_time);
  options.restart_window_s = 600;
  const auto both = simulate(options);
  EXPECT_EQ(both.replicas_given_up, 2);
  EXPECT_LT(both.effective_training_time, none.effective_training_time / 2);
  options.whole_job_share = 0.1;  // Then all replicas restart.
  EXPECT_GT(simulate(options).replicas_given_up, 2);
}

TEST(Simulate, ACoordinatorThatFailsCostsLittle) {
  auto options = few_hosts();
  options.mtbf_min = 1e9;
  options.coordinator_mtbf_h = 1;
  const auto result = simulate(options);
  // About fifty times it is away for two seconds, with steps of five seconds.
  EXPECT_GT(result.effective_training_time, 0.995);
  EXPECT_LT(result.effective_training_time, 1);
}

TEST(Simulate, NamesWhatFirstRunsOut) {
  const auto result = simulate(few_hosts());
  ASSERT_TRUE(result.traffic);
  ASSERT_FALSE(result.resources.empty());
  EXPECT_GE(result.resources.front().share, result.resources.back().share);
  EXPECT_GT(result.traffic->log_bytes_per_day, 0);
}

TEST(Simulate, EachAssumptionHasAValueAndASource) {
  for (const auto policy :
       {FailurePolicy::kRestart, FailurePolicy::kTorchft,
        FailurePolicy::kSherd}) {
    auto options = few_hosts();
    options.policy = policy;
    for (const auto& one : simulate(options).assumptions) {
      EXPECT_FALSE(one.value.empty()) << one.name;
      EXPECT_FALSE(one.source.empty()) << one.name;
    }
  }
}

TEST(Simulate, NamesOnlyAssumptionsThatThePolicyMakes) {
  const auto has = [](FailurePolicy policy, const char* name) {
    auto options = few_hosts();
    options.policy = policy;
    options.stall_min = 1;
    const auto all = simulate(options).assumptions;
    return std::any_of(all.begin(), all.end(), [&](const auto& one) {
      return one.name == name;
    });
  };
  for (const char* name :
       {"stall at a return", "restart of the whole job",
        "failures that stop the whole job", "stall after a failure",
        "fewest replicas that make a step"}) {
    EXPECT_FALSE(has(FailurePolicy::kRestart, name)) << name;
    EXPECT_TRUE(has(FailurePolicy::kTorchft, name)) << name;
    EXPECT_TRUE(has(FailurePolicy::kSherd, name)) << name;
  }
}

// Half a second is too short for a leader of so many ranks.
TEST(Simulate, AStallCanBeSetForReplicasOfAnySize) {
  auto options = few_hosts();
  options.step_s.reset();
  options.stall_min = 1;
  options.runs = 1;
  options.days = 0.1;
  for (const std::int64_t gpus : {64, 98'304, 200'000}) {
    options.gpus = gpus;
    EXPECT_GT(simulate(options).effective_training_time, 0.5) << gpus;
  }
  options.gpus = 98'304;
  options.replicas = 12;
  EXPECT_DOUBLE_EQ(step_s_of(options), 0.5);
}

std::string refused(const std::function<void(SimulationOptions&)>& set) {
  auto options = few_hosts();
  set(options);
  try {
    simulate(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Simulate, RefusesStepsThatAreTooShort) {
  EXPECT_THAT(
      refused([](auto& o) {
        o.gpus = 6400;
        o.step_s = 0.01;
      }),
      HasSubstr("expected a step longer than"));
  for (const auto policy :
       {FailurePolicy::kRestart, FailurePolicy::kTorchft,
        FailurePolicy::kSherd}) {
    EXPECT_THAT(
        refused([&](auto& o) {
          o.policy = policy;
          o.step_s = 1e-10;
        }),
        HasSubstr("expected a step of at least 0.001 s, found 1e-10"));
    EXPECT_THAT(
        refused([&](auto& o) {
          o.policy = policy;
          o.step_s = 0.001;
          o.days = 200;
        }),
        HasSubstr(
            "at most 1e+10 steps in the simulated time, found 1.728e+10"));
  }
}

TEST(Simulate, RefusesWhatDoesNotFitTogether) {
  EXPECT_THAT(
      refused([](auto& o) { o.gpus = 65; }),
      HasSubstr("4 replicas divide, found 65"));
  EXPECT_THAT(
      refused([](auto& o) { o.replicas = 0; }),
      HasSubstr("1 to 4096 replicas, found 0"));
  EXPECT_THAT(
      refused([](auto& o) { o.spares = -1; }),
      HasSubstr("0 to 10000000 spares, found -1"));
  EXPECT_THAT(
      refused([](auto& o) { o.mtbf_min = 0; }), HasSubstr("above 0, found 0"));
  EXPECT_THAT(
      refused([](auto& o) { o.whole_job_share = 1.5; }),
      HasSubstr("from 0 to 1, found 1.5"));
  EXPECT_THAT(
      refused([](auto& o) { o.stall_min = -3; }), HasSubstr("found -3"));
  EXPECT_THAT(
      refused([](auto& o) { o.steps = 0; }),
      HasSubstr("steps above 0, found 0"));
  EXPECT_THAT(
      refused([](auto& o) { o.mtbf_min = 1e-9; }),
      HasSubstr("failures in the simulated time"));
  EXPECT_THAT(
      refused([](auto& o) { o.checkpoint_min = 1e-12; }),
      HasSubstr("checkpoints in the simulated time"));
  EXPECT_THAT(
      refused([](auto& o) { o.coordinator_mtbf_h = 1e-9; }),
      HasSubstr("failures of the coordinator in the simulated time"));
  EXPECT_THAT(
      refused([](auto& o) { o.spares = 2'000'000'000; }),
      HasSubstr("found 2000000000"));
  EXPECT_THAT(
      refused([](auto& o) { o.gpus = 4'000'000'000'000; }),
      HasSubstr("found 4000000000000"));
  EXPECT_THAT(
      refused([](auto& o) { o.gpus = 4 * (kReplicaGpusMax + 1); }),
      HasSubstr("replicas of at most 65536 GPUs, found ones of 65537"));
  EXPECT_THAT(
      refused([](auto& o) { o.runs = 2'000'000'000; }),
      HasSubstr("found 2000000000"));
  EXPECT_THAT(
      refused([](auto& o) { o.straggler_factor = HUGE_VAL; }),
      HasSubstr("found inf"));
}

}  // namespace
}  // namespace sherd::sim
