// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>
#include <string>
#include <vector>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include "bench/collectives.h"
#include "bench/command.h"
#include "command_lines.h"
#include "exec_program.h"
#include "format_text.h"

namespace sherd::bench {
namespace {

constexpr const char* kCollectivesExplanation =
    R"(Times all-reduce, all-gather and reduce-scatter of CPU tensors among ranks of
this host, fp32 and bf16, 64 KiB to 64 MiB, in one run and in turn:

  shm     sherd's shared-memory backend
  gloo    PyTorch's Gloo
  memcpy  a copy of as many bytes on every rank at once
)";

constexpr const char* kCollectivesExamples =
    R"(Sizes are those of the whole: what every rank has after an all-gather, and
brings to a reduction.

Examples:
  sherd bench collectives --ranks 4
  sherd bench collectives --rounds 31 --bytes-min 67108864

The last line is one JSON object; of_gloo is shm's time as a part of Gloo's.)";

// Every rank may use every core, since Gloo has threads of its own.
std::string command_of(const CollectivesOptions& options) {
  return tools::shell_quoted(tools::path_beside("sherd")) +
      " run --no-bind --no-prefix -n " + std::to_string(options.ranks) +
      " -- " +
      tools::shell_quoted(tools::path_beside("sherd-bench-collectives")) +
      " --rounds " + std::to_string(options.rounds) + " --block-ms " +
      std::to_string(options.block_ms) + " --bytes-min " +
      std::to_string(options.bytes_min) + " --bytes-max " +
      std::to_string(options.bytes_max) +
      (options.deepspeed.empty()
           ? ""
           : " --deepspeed " + tools::shell_quoted(options.deepspeed)) +
      " </dev/null";
}

std::vector<CollectiveTimes> times_of(const CollectivesOptions& options) {
  tools::CommandLines lines(command_of(options));
  std::vector<CollectiveTimes> all;
  while (const auto line = lines.next()) {
    if (auto times = parse_reply<CollectiveTimes>(*line)) {
      all.push_back(std::move(*times));
    } else {
      std::fprintf(stderr, "%s\n", line->c_str());
    }
  }
  if (lines.close() != 0 || all.empty()) {
    throw Error(
        "[bench] expected times of all ranks, but a rank failed",
        ErrorCode::kUnavailable);
  }
  return all;
}

void run(const CollectivesOptions& options) {
  const BenchmarkContext found = benchmark_context();
  expect_program("sherd-bench-collectives");
  const auto all = times_of(options);
  print_report(
      options.json_only, table_of(options.ranks, all, found),
      json_of(options.ranks, all, found));
}

}  // namespace

void add_collectives(CLI::App& bench_app) {
  auto options = std::make_shared<CollectivesOptions>();
  CLI::App* app =
      bench_app.add_subcommand("collectives", kCollectivesExplanation);
  app->footer(kCollectivesExamples);
  app->add_option("-n,--ranks", options->ranks, "Number of ranks")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--rounds", options->rounds, "How often each has its turn")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--block-ms", options->block_ms, "How long a turn is, about")
      ->capture_default_str();
  app->add_option("--bytes-min", options->bytes_min, "Smaller ones left out")
      ->capture_default_str();
  app->add_option("--bytes-max", options->bytes_max, "Larger ones left out")
      ->capture_default_str();
  app->add_option(
      "--deepspeed", options->deepspeed,
      "DeepSpeed's shared-memory all-reduce too: the library\n"
      "that bench/build_deepspeed.py makes");
  app->add_flag("--json-only", options->json_only, "Without the table");
  app->callback([options] { run(*options); });
}

}  // namespace sherd::bench
