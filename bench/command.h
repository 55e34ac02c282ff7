// SPDX-License-Identifier: Apache-2.0
//
// The subcommands of `sherd bench`, and what they share: where the programs of the ranks are, the
// description of the machine, and the progress line. Thread rule: one thread.
#pragma once

#include <functional>
#include <string>
#include "bench/report.h"
#include "bench/step_bench.h"

namespace CLI {
class App;
}

namespace sherd::bench {

struct BenchCommand {
  CLI::App* app = nullptr;
  // Called after a successful parse; returns the exit status and may throw Error.
  std::function<int()> run;
};

BenchCommand add_step(CLI::App& bench_app);
BenchCommand add_collectives(CLI::App& bench_app);
BenchCommand add_faults(CLI::App& bench_app);

// Throws in a build whose times would be meaningless.
void expect_release_build();
// Throws if access(2) denies `access` to `path`; the message ends with `remedy`.
void expect_file(const std::string& path, int access, const char* remedy);
void expect_program(const char* name);
// The programs that start and run ranks, and their environment; throws if one is missing.
StepPrograms programs_of_ranks();
BenchmarkContext benchmark_context();
// Warns on stderr if the load of this machine would disturb measurements.
void warn_when_busy();
// Shows on a terminal what is going on, in one line; "" clears it.
ProgressCallback progress_line();

}  // namespace sherd::bench
