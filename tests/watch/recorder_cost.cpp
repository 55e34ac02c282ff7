// SPDX-License-Identifier: Apache-2.0
//
// recorder_cost: what the recorder of events costs a training step. Three settings run in turn, each in
// a model of its own that is made anew each round, in an order that each round shuffles:
//
//   none      no recorder
//   off       as always: the recorder, without a profile
//   on        a Profile, and fsdp.report() as JSON after each step
//
// Rank 0 prints the ratios of their steps to those without a recorder and, less subject to noise, how
// many events a step has and what they cost one after another.
//
//   sherd run -n 2 --no-prefix -- build/release/tests/recorder_cost --work small
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>
#include <CLI/CLI.hpp>
#include <sherd/base/run_main.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/models/gpt.h>
#include <sherd/optim/adamw.h>
#include <sherd/world/flight_recorder.h>
#include <torch/torch.h>
#include "base/flight_recorder.h"
#include "bench/report_text.h"
#include "bench/step_runner.h"
#include "world/world_impl.h"

namespace sherd::bench {
namespace {

using Clock = std::chrono::steady_clock;

enum class Recording { kNone, kOff, kOn };
constexpr Recording kRecordings[] = {
    Recording::kNone, Recording::kOff, Recording::kOn};

struct CostFlags {
  std::string work = "small";
  std::string exchange = "collective";
  int rounds = 41;
  int steps = 8;   // Timed, of each round and setting.
  int warmup = 3;  // Before them: the plan is made.
};

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin)
      .count();
}

// What one event costs, in a recorder of its own.
double event_ns() {
  constexpr int kEvents = 200'000;
  const SteadyClock clock;
  const auto recorder =
      std::make_shared<FlightRecorder>(FlightOptions(), clock);
  const FlightLog log(recorder, "a measurement", {0});
  log.name_units({"unit"});
  const auto begin = Clock::now();
  for (int i = 0; i < kEvents; ++i) {
    log.record({.unit = 0, .event = FlightEvent::kAsked});
  }
  return 1e6 * ms_since(begin) / kEvents;
}

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

class RecorderCost {
 public:
  RecorderCost(const World& world, const CostFlags& flags)
      : world_(world),
        flags_(flags),
        work_(workload_named(flags.work)),
        recorder_(world.impl()->flight) {}

  // The median of the steps of one model, the slowest rank's, ms.
  double round(Recording recording) {
    world_.impl()->flight = recording == Recording::kNone ? nullptr : recorder_;
    models::Gpt model(model_config(work_));
    FullyShardOptions options;
    options.exchange = flags_.exchange == "shm" ? ExchangeKind::kSharedMemory
                                                : ExchangeKind::kCollective;
    auto fsdp = fully_shard(*model, world_, options);
    AdamW adamw(fsdp.named_parameters(), {.learning_rate = kLearningRate});
    world_.impl()->flight = recorder_;
    std::optional<Profile> profile;
    if (recording == Recording::kOn) {
      profile.emplace(world_);
    }
    std::vector<double> times;
    std::size_t lines_before = 0;
    for (int step = -flags_.warmup; step < flags_.steps; ++step) {
      if (step == 0 && profile) {
        lines_before = lines_of(recorder_->to_json());
      }
      const auto inputs =
          torch::randint(kVocabulary, {work_.batch, work_.sequence});
      world_.barrier();
      const auto begin = Clock::now();
      model->loss(inputs, inputs).backward();
      adamw.step();
      adamw.zero_grad();
      if (recording == Recording::kOn) {
        report_bytes_ += to_json(fsdp.report()).size();
      }
      if (step >= 0) {
        times.push_back(ms_since(begin));
      }
    }
    if (profile) {
      events_ =
          static_cast<double>(lines_of(recorder_->to_json()) - lines_before) /
          flags_.steps;
    }
    double slowest = 0;
    for (const auto& one : world_.all_gather({median(times)})) {
      slowest = std::max(slowest, one[0]);
    }
    return slowest;
  }

  // Of this rank in a step, visits among them.
  double events() const { return events_; }

 private:
  const World& world_;
  const CostFlags flags_;
  const Workload work_;
  const std::shared_ptr<FlightRecorder> recorder_;
  double events_ = 0;
  std::size_t report_bytes_ = 0;
};

void measure(const World& world, const CostFlags& flags) {
  RecorderCost cost(world, flags);
  (void)cost.round(Recording::kNone);  // What a process does once.
  std::vector<std::vector<double>> times(std::size(kRecordings));
  for (int round = 0; round < flags.rounds; ++round) {
    for (const auto i :
         order_of_round(times.size(), static_cast<std::uint64_t>(round))) {
      times[i].push_back(cost.round(kRecordings[i]));
    }
  }
  const double ns = event_ns();
  if (world.rank() != 0) {
    return;
  }
  const double step_ms = median(times[0]);
  std::printf(
      "%s, %d ranks, %s, %d rounds of %d steps: %.1f ms a step without a "
      "recorder\n"
      "off   %s\n"
      "on    %s\n"
      "%.0f events a step in a profile, %.0f ns each: %.3f %% of a step\n",
      flags.work.c_str(), world.size(), flags.exchange.c_str(), flags.rounds,
      flags.steps, step_ms, median_text(ratios(times[1], times[0])).c_str(),
      median_text(ratios(times[2], times[0])).c_str(), cost.events(), ns,
      100.0 * cost.events() * ns / (1e6 * step_ms));
}

int cost_command(int argc, char** argv) {
  CLI::App app("What the recorder of events costs a step", "recorder_cost");
  CostFlags flags;
  app.add_option("--work", flags.work, "wide, small or tiny");
  app.add_option("--exchange", flags.exchange, "collective or shm")
      ->check(CLI::IsMember({"collective", "shm"}));
  app.add_option("--rounds", flags.rounds)->check(CLI::PositiveNumber);
  app.add_option("--steps", flags.steps, "Of each setting in a round")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  auto world = World::from_environment();
  measure(world, flags);
  world.close();
  return 0;
}

}  // namespace
}  // namespace sherd::bench

int main(int argc, char** argv) {
  using namespace sherd::bench;
  return sherd::run_main(argc, argv, [&] { return cost_command(argc, argv); });
}
