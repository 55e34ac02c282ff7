// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include "bench/report.h"
#include "bench/step_bench.h"
#include "bench_command.h"
#include "subcommand.h"

namespace sherd::tools {
namespace {

using bench::BenchmarkContext;
using bench::StepConfig;
using bench::StepPrograms;

constexpr const char* kExplanation =
    "Times a training step of sherd beside others that do the same work, in "
    "one\n"
    "run and in turn, until the ratios are known well enough:\n"
    "\n"
    "  bound   as many plain LibTorch processes in lock step, each updating "
    "its\n"
    "          part of the parameters, nothing exchanged: what no "
    "data-parallel\n"
    "          training can beat (one rank: plain LibTorch)\n"
    "  fsdp2   PyTorch's fully_shard over Gloo, resharding as --strategy says\n"
    "  ddp     PyTorch's DistributedDataParallel over Gloo\n";

constexpr const char* kExamples =
    "Works: wide   6 layers, width 768, sequence 64, batch 1 a rank\n"
    "       small  8 layers, width 256, sequence 128, batch 4\n"
    "       tiny   4 layers, width 128, sequence 64, batch 4\n"
    "\n"
    "Examples:\n"
    "  sherd bench step\n"
    "  sherd bench step --work tiny --ranks 1\n"
    "  sherd bench step --strategy full_shard --budget 64MiB --peers none\n"
    "\n"
    "The last line is one JSON object: bound_ms, sherd_ms, fsdp2_ms, ddp_ms,\n"
    "sherd_ratio and the like to the bound, each with _low and _high.";

struct BenchArguments {
  StepConfig step;
  std::string python = SHERD_BENCH_PYTHON;
  bool json_only = false;
};

// The text of a file of /proc, or nothing.
std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The load average of the last minute, as the kernel writes it.
std::string load() {
  const std::string text = text_of("/proc/loadavg");
  return text.substr(0, text.find(' '));
}

std::string machine() {
  std::string model = "unknown processor";
  const std::string text = text_of("/proc/cpuinfo");
  if (const auto at = text.find("model name"); at != std::string::npos) {
    const auto begin = text.find(": ", at) + 2;
    model = text.substr(begin, text.find('\n', begin) - begin);
  }
  return model + ", " + std::to_string(std::thread::hardware_concurrency()) +
      " cores, load " + load() + " before";
}

std::string commit() {
  const char* line = "git -C '" SHERD_BENCH_SOURCE
                     "' describe --always --dirty --exclude '*' 2>/dev/null";
  std::array<char, 80> buffer = {};
  FILE* pipe = ::popen(line, "r");
  if (pipe == nullptr) {
    return "unknown";
  }
  const bool found = std::fgets(buffer.data(), buffer.size(), pipe) != nullptr;
  ::pclose(pipe);
  std::string text = buffer.data();
  text.erase(std::min(text.find('\n'), text.size()));
  return found ? text : "unknown";
}

void expect_file(const std::string& path, int access, const char* remedy) {
  if (::access(path.c_str(), access) != 0) {
    throw Error(
        "[bench] expected " + path + ", found none; " + remedy,
        ErrorCode::kUnavailable);
  }
}

StepPrograms programs(const BenchArguments& arguments) {
  StepPrograms found = programs_of_ranks();
  found.python = arguments.python;
  found.peer_script = SHERD_BENCH_SOURCE "/bench/peer_rank.py";
  if (bench::contenders_of(arguments.step).size() > 2) {
    expect_file(found.peer_script, R_OK, "--peers none does without it");
    if (found.python.find('/') != std::string::npos) {
      expect_file(
          found.python, X_OK,
          "--python names one with torch, --peers none "
          "does without it");
    }
  }
  return found;
}

int run_step(const BenchArguments& arguments) {
  bench::check(arguments.step);
  expect_release_build();
  const BenchmarkContext found = benchmark_context();
  warn_when_busy();
  const auto progress = progress_line();
  try {
    const bench::StopSignalFd signals;
    const auto result =
        bench::measure(arguments.step, programs(arguments), signals, progress);
    progress("");
    if (!arguments.json_only) {
      std::fputs(
          bench::table_of(arguments.step, result, found).c_str(), stdout);
    }
    std::puts(bench::json_of(arguments.step, result, found).c_str());
    return 0;
  } catch (const bench::Interrupted& interrupted) {
    progress("");
    std::fprintf(
        stderr, "sherd: interrupted; every contender has been ended\n");
    return 128 + interrupted.signal;
  }
}

void add_step_options(CLI::App& app, BenchArguments& arguments) {
  StepConfig& step = arguments.step;
  app.add_option("--work", step.work, "wide, small or tiny")
      ->capture_default_str();
  app.add_option(
         "--mode", step.mode,
         "fsdp: fully_shard; ddp: replicate, beside a bound in which every\n"
         "rank updates all parameters")
      ->capture_default_str();
  app.add_option(
         "--exchange", step.exchange,
         "Of sherd. collective: over Gloo; shm: shared memory; auto: as\n"
         "SHERD_EXCHANGE says, else shm")
      ->capture_default_str();
  app.add_option("-n,--ranks", step.ranks, "Number of ranks")
      ->capture_default_str();
  app.add_option(
         "--replicate", step.replicate,
         "Replicas of as many ranks each that hold the whole model")
      ->capture_default_str();
  app.add_option(
         "--dtype", step.dtype,
         "fp32; or bf16: forward and backward in bf16 over fp32 weights and\n"
         "optimizer state, ddp by autocast")
      ->capture_default_str();
  app.add_option(
         "--strategy", step.strategy, "full_shard, shard_grad_op or no_shard")
      ->capture_default_str();
  app.add_option(
      "--budget", step.budget,
      "Bytes of whole units at most, e.g. 64MiB; sherd only");
  app.add_option(
         "--update", step.update,
         "When sherd's AdamW updates: step: in step(); backward: while "
         "backward\n"
         "runs, where ranks share memory")
      ->capture_default_str();
  app.add_option(
         "--peers", step.peers, "all: PyTorch's, where they apply; or none")
      ->capture_default_str();
  app.add_option(
         "--heap", step.heap,
         "glibc: as the environment has it; kept: in no contender\n"
         "is memory given back to the kernel")
      ->capture_default_str();
  app.add_option(
         "--interval-width", step.interval_width,
         "Go on until each ratio's 95 % interval is as narrow,\n"
         "as a part of the ratio")
      ->capture_default_str();
  app.add_option("--rounds-max", step.rounds_max, "But not for more rounds")
      ->capture_default_str();
  app.add_option("--minutes-max", step.minutes_max, "And not for longer")
      ->capture_default_str();
  app.add_option(
      "--block-steps", step.block_steps,
      "Timed steps of a contender at a time; the work's\n"
      "when left out");
  app.add_option("--python", arguments.python, "A Python with torch")
      ->capture_default_str();
  app.add_flag("--json-only", arguments.json_only, "Without the table");
}

}  // namespace

void expect_release_build() {
#ifndef NDEBUG
  throw Error(
      "[bench] expected a Release build, found " SHERD_BENCH_BUILD
      ", whose times mean nothing",
      ErrorCode::kFailedPrecondition);
#endif
}

std::string path_of_program(const char* name) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / name).string();
}

void expect_program(const char* name) {
  expect_file(path_of_program(name), X_OK, "it needs a build with LibTorch");
}

StepPrograms programs_of_ranks() {
  expect_program("sherd-bench-rank");
  StepPrograms found;
  found.sherd = path_of_program("sherd");
  found.rank = path_of_program("sherd-bench-rank");
  for (char** variable = environ; *variable != nullptr; ++variable) {
    found.environment.emplace_back(*variable);
  }
  return found;
}

BenchmarkContext benchmark_context() {
  return {
      .sherd_version = SHERD_VERSION,
      .commit = commit(),
      .build = SHERD_BENCH_BUILD,
      .machine = machine()};
}

void warn_when_busy() {
  constexpr double kBusy = 0.5;
  const std::string found = load();
  if (std::strtod(found.c_str(), nullptr) > kBusy) {
    std::fprintf(
        stderr,
        "sherd: warning: this machine is busy (load %s); times of ranks that "
        "wait for each other say little then\n",
        found.c_str());
  }
}

bench::ProgressCallback progress_line() {
  if (::isatty(STDERR_FILENO) != 1) {
    return [](const std::string& /*what*/) {};
  }
  return [](const std::string& what) {
    std::fprintf(stderr, "\r\033[K%s", what.c_str());
  };
}

Subcommand add_bench(CLI::App& app) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* bench_app =
      app.add_subcommand("bench", "Compare speed and memory with others");
  bench_app->require_subcommand(1);
  CLI::App* step_app = bench_app->add_subcommand("step", kExplanation);
  step_app->footer(kExamples);
  add_step_options(*step_app, *arguments);
  const BenchCommand collectives = add_collectives(*bench_app);
  const BenchCommand faults = add_faults(*bench_app);
  return {
      .app = bench_app,
      .run = [=](const std::vector<std::string>& /*program*/) {
        for (const BenchCommand& other : {collectives, faults}) {
          if (other.app->parsed()) {
            return other.run();
          }
        }
        return run_step(*arguments);
      }};
}

}  // namespace sherd::tools
