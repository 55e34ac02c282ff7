// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>
#include <memory>
#include <string>
#include <CLI/CLI.hpp>
#include "bench/command.h"
#include "bench/report.h"
#include "bench/step_bench.h"
#include "exec_program.h"

namespace sherd::bench {
namespace {

constexpr const char* kStepExplanation =
    R"(Times a training step of sherd beside others that do the same work, in one
run and in turn, until the ratios are known well enough:

  bound   as many plain LibTorch processes in lock step, each updating its
          part of the parameters, nothing exchanged: what no data-parallel
          training can beat (one rank: plain LibTorch)
  python  with --language python: sherd through its Python package
  fsdp2   PyTorch's fully_shard over Gloo, resharding as --strategy says
  ddp     PyTorch's DistributedDataParallel over Gloo
)";

constexpr const char* kStepExamples =
    R"(Works: wide   6 layers, width 768, sequence 64, batch 1 a rank
       small  8 layers, width 256, sequence 128, batch 4
       tiny   4 layers, width 128, sequence 64, batch 4

Examples:
  sherd bench step
  sherd bench step --work tiny --ranks 1
  sherd bench step --strategy full_shard --budget 64MiB --peers none
  sherd bench step --language python --exchange shm

The last line is one JSON object: bound_ms, sherd_ms, fsdp2_ms, ddp_ms,
sherd_ratio and the like to the bound, python_to_sherd and the like;
each has _low and _high.)";

// The installed one, or that in the sources of the build.
std::string peer_script() {
  const auto installed =
      tools::path_beside("../share/sherd/bench/peer_rank.py");
  return ::access(installed.c_str(), R_OK) == 0 ? installed
                                                : SHERD_BENCH_SOURCE
      "/bench/peer_rank.py";
}

// The folder of the Python package in the build; empty if it does not exist, and then Python finds
// the installed one.
std::string package_folder() {
  auto folder = tools::path_beside("python");
  return ::access((folder + "/sherd").c_str(), R_OK) == 0 ? folder : "";
}

StepPrograms programs(const StepConfig& step) {
  StepPrograms found = programs_of_ranks();
  found.peer_script = peer_script();
  found.package = package_folder();
  if (contenders_of(step).size() > 2) {
    expect_file(
        found.peer_script, R_OK, "--peers none --language cpp does without it");
    if (step.python.find('/') != std::string::npos) {
      expect_file(
          step.python, X_OK,
          "--python names one with torch, --peers none --language cpp does "
          "without it");
    }
  }
  return found;
}

int run_step(const StepConfig& step) {
  check(step);
  const BenchmarkContext found = benchmark_context();
  return unless_interrupted([&](const auto& signals, const auto& progress) {
    const auto result = measure(step, programs(step), signals, progress);
    progress("");
    print_report(
        step.json_only, table_of(step, result, found),
        json_of(step, result, found));
    return 0;
  });
}

void add_step_options(CLI::App& app, StepConfig& step) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->capture_default_str();
  };
  add("--work", step.work, "wide, small or tiny");
  add("--mode", step.mode,
      "fsdp: fully_shard; ddp: replicate, beside a bound in which every\n"
      "rank updates all parameters");
  add("--exchange", step.exchange,
      "Of sherd. collective: over Gloo; shm: shared memory; auto: as\n"
      "SHERD_EXCHANGE says, else shm");
  add("-n,--ranks", step.ranks, "Number of ranks");
  add("--replicate", step.replicate,
      "Replicas of as many ranks each that hold the whole model");
  add("--dtype", step.dtype,
      "fp32; or bf16: forward and backward in bf16 over fp32 weights and\n"
      "optimizer state, ddp by autocast");
  add("--strategy", step.strategy, "full_shard, shard_grad_op or no_shard");
  app.add_option(
      "--budget", step.budget,
      "Bytes of whole units at most, e.g. 64MiB; sherd only");
  add("--update", step.update,
      "When sherd's AdamW updates: step: in step(); backward: while "
      "backward\n"
      "runs, where ranks share memory");
  add("--peers", step.peers, "all: PyTorch's, where they apply; or none");
  add("--language", step.language,
      "python: also the same training through the Python package");
  add("--heap", step.heap,
      "glibc: as the environment has it; kept: in no contender\n"
      "is memory given back to the kernel");
  add("--interval-width", step.limits.interval_width,
      "Go on until each ratio's 95 % interval is as narrow,\n"
      "as a part of the ratio");
  add("--rounds-max", step.limits.rounds_max, "But not for more rounds");
  add("--minutes-max", step.limits.minutes_max, "And not for longer");
  app.add_option(
      "--block-steps", step.block_steps,
      "Timed steps of a contender at a time; the work's\n"
      "when left out");
  add("--python", step.python, "A Python with torch");
  app.add_flag("--json-only", step.json_only, "Without the table");
}

}  // namespace

void add_step(CLI::App& bench_app, int& status) {
  auto step = std::make_shared<StepConfig>();
  step->python = SHERD_BENCH_PYTHON;
  CLI::App* app = bench_app.add_subcommand("step", kStepExplanation);
  app->footer(kStepExamples);
  add_step_options(*app, *step);
  app->callback([step, &status] { status = run_step(*step); });
}

}  // namespace sherd::bench
