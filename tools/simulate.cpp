// SPDX-License-Identifier: Apache-2.0
#include "sim/simulate.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include "option_adder.h"
#include "parse_arguments.h"
#include "simulate/simulation_reports.h"
#include "tool_main.h"

namespace sherd::tools {
namespace {

using sim::SimulationOptions;

constexpr const char* kSimulateExamples =
    "Examples:\n"
    "  sherd simulate --gpus 16000 --replicas 20 --spares 8\n"
    "      2,000 hosts, 8 spare ones, failures as often as elsewhere\n"
    "  sherd simulate --gpus 98304 --replicas 12 --policy all --html "
    "sizes.html\n"
    "      three policies, and a page about spares, failures and sizes\n"
    "  sherd simulate --policy sherd --arrivals even --mtbf-min 18 --stall-min "
    "3 \\\n"
    "    --down-min 10 --step-s 1 --days 1 --json\n"
    "      the published calculation for FT-HSDP: 80.1 %\n"
    "\n"
    "Every assumption is printed with its source. The guide: "
    "docs/guide/simulate.md.";

struct SimulateArguments {
  SimulationOptions options;
  std::vector<std::string> policies{"sherd"};
  std::string arrivals = "poisson";
  std::string html;
  bool json = false;
};

void add_cluster(CLI::App* app, SimulateArguments& arguments) {
  auto& options = arguments.options;
  const auto add = option_adder(app);
  add("--policy", arguments.policies, "NAME",
      "What a failure costs the others: sherd (repeat a\n"
      "reduction), torchft (discard the step), restart\n"
      "(all start again from a checkpoint), several of\n"
      "them with commas, or all (sherd)")
      ->delimiter(',');
  add("--gpus", options.gpus, "N", "GPUs of all replicas (98304)");
  add("--replicas", options.replicas, "N",
      "Replicas, each with a complete model (12)");
  add("--gpus-per-host", options.gpus_per_host, "N",
      "GPUs that fail together (8)");
  add("--step-s", options.step_s, "SECONDS",
      "A step without failures (20; with --stall-min\n"
      "and sherd half a second: formulas know no steps)");
  add("--days", options.days, "N", "How long to train (30)");
  add("--steps", options.steps, "N",
      "Instead: for the time that so many steps take\n"
      "without failures; needs --step-s with --stall-min");
  add("--replicas-min", options.replicas_min, "N",
      "No step is committed by fewer replicas (1)");
}

void add_failures(CLI::App* app, SimulateArguments& arguments) {
  auto& options = arguments.options;
  const auto add = option_adder(app);
  add("--mtbf-min", options.mtbf_min, "MINUTES",
      "Mean time between failures of the whole cluster\n"
      "(from the rate of hosts)");
  add("--host-failures", options.failures_per_1000_host_days, "RATE",
      "Failures of 1000 hosts in a day (6.5)");
  add("--arrivals", arguments.arrivals, "NAME",
      "When failures come: even, poisson (poisson)")
      ->check(CLI::IsMember({"even", "poisson"}));
  add("--whole-job-share", options.whole_job_share, "SHARE",
      "Of the failures, those that stop the whole job (0)");
  add("--two-replica-share", options.two_replica_share, "SHARE",
      "Of the others, those that take two replicas (0)");
  add("--stragglers", options.stragglers_per_1000_host_days, "RATE",
      "Hosts of 1000 that become slow in a day (0)");
  add("--straggler-factor", options.straggler_factor, "X",
      "How many times as long a step takes with one (1.5)");
  add("--straggler-min", options.straggler_min, "MINUTES",
      "For how long it is slow (60)");
  add("--link-down-min", options.link_down_min, "MINUTES",
      "How long nothing passes between two replicas whose\n"
      "network fails (0: connections are made again)");
  add("--coordinator-mtbf-h", options.coordinator_mtbf_h, "HOURS",
      "Mean time between failures of the coordinator\n"
      "(0: it never fails)");
  add("--coordinator-down-s", options.coordinator_down_s, "SECONDS",
      "Until the coordinator is back (2)");
}

void add_times(CLI::App* app, SimulateArguments& arguments) {
  auto& options = arguments.options;
  const auto add = option_adder(app);
  add("--stall-min", options.stall_min, "MINUTES",
      "Everybody stands still for so long after a failure\n"
      "(as long as the stages of the policy take)");
  add("--down-min", options.down_min, "MINUTES",
      "Until a lost replica is ready again, under restart\n"
      "until the job is (10)");
  add("--rejoin-min", options.rejoin_min, "MINUTES",
      "Everybody stands still for so long when a replica\n"
      "comes back (0)");
  add("--restart-min", options.restart_min, "MINUTES",
      "Until the job goes on after a failure of all (10)");
  add("--checkpoint-min", options.checkpoint_min, "MINUTES",
      "Between two checkpoints that the job starts again\n"
      "from (0: nothing is lost)");
  add("--spares", options.spares, "N",
      "Hosts that can take the place of failed ones (as\n"
      "many as are needed)");
  add("--repair-h", options.repair_h, "HOURS",
      "Until a failed host is a spare one (12)");
  add("--max-restarts", options.restarts_max, "N",
      "As of sherd run: how often a replica is started\n"
      "again within --restart-window (30)");
  add("--restart-window", options.restart_window_s, "SECONDS",
      "Until a restart does not count any more (3600; 0:\n"
      "they all count)");
  add("--gradient-mb", options.gradient_mb, "MB",
      "Gradients that each GPU reduces across replicas\n"
      "(500)");
  add("--link-gbit-per-s", options.link_gbit_per_s, "GBIT",
      "What a GPU can send to another replica (400)");
}

void add_output(CLI::App* app, SimulateArguments& arguments) {
  auto& options = arguments.options;
  const auto add = option_adder(app);
  add("--seed", options.seed, "N", "Of all that is random (1)");
  add("--runs", options.runs, "N",
      "Runs with different failures, for the interval (30)");
  add("--threads", options.threads, "N", "(0: as many as there are cores)");
  app->add_flag(
      "--every-step", options.every_step,
      "Simulate each step by itself; slower, and the result\n"
      "is the same");
  app->add_flag(
      "--json", arguments.json,
      "Print one JSON object in one line, nothing else");
  add("--html", arguments.html, "FILE",
      "Also write a page about sizes, failures, stalls and\n"
      "spares, which takes some seventy short simulations\n"
      "more");
}

std::vector<sim::FailurePolicy> policies_of(
    const std::vector<std::string>& names) {
  std::vector<sim::FailurePolicy> policies;
  for (const auto& name : names) {
    if (name == "all") {
      return {kPolicies.begin(), kPolicies.end()};
    }
    const auto* found = std::find_if(
        kPolicies.begin(), kPolicies.end(),
        [&](auto policy) { return name == name_of(policy); });
    if (found == kPolicies.end()) {
      throw Error(
          "--policy: expected sherd, torchft, restart or all, found '" + name +
          "'");
    }
    policies.push_back(*found);
  }
  return policies;
}

void expect_written(const std::ofstream& file, const std::string& path) {
  if (!file) {
    throw Error(
        path + ": expected a file that can be written, found " +
        std::strerror(errno));
  }
}

void write_page(
    const SimulationOptions& options,
    const std::vector<sim::SimulationResult>& all,
    const std::string& path) {
  const auto page = simulation_page(options, all);
  std::ofstream file(path, std::ios::binary);
  file << page;
  file.close();
  expect_written(file, path);
}

int run(const SimulateArguments& arguments) {
  auto options = arguments.options;
  if (options.steps && options.stall_min && !options.step_s) {
    throw Error(
        "--steps: expected a --step-s beside --stall-min, with which the steps "
        "of the policies differ, found none");
  }
  options.arrivals = arguments.arrivals == "even" ? sim::Arrivals::kEven
                                                  : sim::Arrivals::kPoisson;
  if (!arguments.html.empty()) {
    // Before anything takes time. A page that is there stays until there is a new one.
    const bool is_there = std::filesystem::exists(arguments.html);
    expect_written(
        std::ofstream(arguments.html, std::ios::app), arguments.html);
    if (!is_there) {
      std::filesystem::remove(arguments.html);
    }
  }
  std::vector<sim::SimulationResult> all;
  for (const auto policy : policies_of(arguments.policies)) {
    options.policy = policy;
    all.push_back(sim::simulate(options));
  }
  if (!arguments.json) {
    std::fputs(simulation_table(all).c_str(), stdout);
    std::putchar('\n');
  }
  std::printf("%s\n", simulation_json(all).c_str());
  if (!arguments.html.empty()) {
    write_page(options, all, arguments.html);
  }
  return 0;
}

int simulate_command(int argc, char** argv) {
  CLI::App app("Simulate training on many GPUs that fail", "sherd simulate");
  app.footer(kSimulateExamples);
  SimulateArguments arguments;
  add_cluster(&app, arguments);
  add_failures(&app, arguments);
  add_times(&app, arguments);
  add_output(&app, arguments);
  return parse_arguments(app, words_of(argc, argv)) ? run(arguments) : 0;
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  return sherd::tools::tool_main(argc, argv, sherd::tools::simulate_command);
}
