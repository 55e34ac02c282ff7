// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <CLI/CLI.hpp>
#include "bench/command.h"
#include "bench/faults_bench.h"
#include "bench/report.h"

namespace sherd::bench {
namespace {

constexpr const char* kFaultsExplanation =
    R"(Kills ranks of a fault-tolerant run with kill -9, one after the other, and
measures how long the others stand still, when the replica is back, what
the others do meanwhile, and whether all hold the same bits; or, with
--cost, what fault tolerance costs while nothing happens: the same work as
plain hybrid sharding, in the same run and in turn.
)";

constexpr const char* kFaultsExamples = R"(Examples:
  sherd bench faults --kills 20
  sherd bench faults --kills 20 --target coordinator
  sherd bench faults --cost --batch 16

The last line is one JSON object: step_s, gap_s, return_s,
throughput_while_returning and coordinator_gap_s (a number a kill),
discarded_steps, divergences; with --cost cost_ratio with _low and _high.
Exit status: 1 when states differ.)";

int run(const FaultsConfig& config) {
  check(config);
  const auto found = benchmark_context();
  const auto programs = programs_of_ranks();
  return unless_interrupted([&](const auto& signals, const auto& progress) {
    const auto show = [&](const auto& result) {
      progress("");
      print_report(
          config.json_only, table_of(config, result, found),
          json_of(config, result, found));
    };
    if (config.cost) {
      show(measure_cost(config, programs, signals, progress));
      return 0;
    }
    const auto result = measure_faults(config, programs, signals, progress);
    show(result);
    return result.hashes.divergences == 0 ? 0 : 1;
  });
}

void add_options(CLI::App& app, FaultsConfig& config) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->capture_default_str();
  };
  add("--work", config.work, "wide, small or tiny");
  add("--batch", config.batch, "Rows a rank; 0: the work's");
  add("--replicas", config.shape.replicas, "Number of replicas");
  add("--ranks", config.shape.ranks, "Ranks of each replica");
  add("--kills", config.kills, "How often; with target both, of each");
  add("--target", config.target, "Who is killed: rank, coordinator or both");
  add("--seed", config.seed, "Of whom is killed, and when within a step");
  add("--exchange", config.exchange, "auto, collective or shm");
  app.add_option(
      "--folder", config.folder,
      "An empty one where the ranks' lines and the launcher's log\n"
      "stay; otherwise they are removed");
  app.add_flag(
      "--cost", config.cost, "Without kills, beside plain hybrid sharding");
  const auto of_cost = [&](const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->capture_default_str()->needs("--cost");
  };
  of_cost(
      "--interval-width", config.limits.interval_width,
      "Go on until the ratio's 95 % interval is as narrow");
  of_cost("--rounds-max", config.limits.rounds_max, "But not for more rounds");
  of_cost("--minutes-max", config.limits.minutes_max, "And not for longer");
  of_cost("--block-steps", config.block_steps, "Timed steps at a time");
  app.add_flag("--json-only", config.json_only, "Without the table");
}

}  // namespace

void add_faults(CLI::App& bench_app, int& status) {
  auto config = std::make_shared<FaultsConfig>();
  CLI::App* app = bench_app.add_subcommand("faults", kFaultsExplanation);
  app->footer(kFaultsExamples);
  add_options(*app, *config);
  app->callback([config, &status] { status = run(*config); });
}

}  // namespace sherd::bench
