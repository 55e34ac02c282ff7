// SPDX-License-Identifier: Apache-2.0
//
// The subcommands of `sherd bench`, and what they share: where the programs of the ranks are, what
// is said about the machine, and the line of progress. Thread rule: one thread.
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

// Throws in a build whose times would mean nothing.
void expect_release_build();
// Throws where access(2) refuses `access` to `path`; the message ends with `remedy`.
void expect_file(const std::string& path, int access, const char* remedy);
void expect_program(const char* name);
// The programs that start and run ranks, and their environment; throws when one is missing.
StepPrograms programs_of_ranks();
BenchmarkContext benchmark_context();
// Warns on stderr when the load of this machine disturbs measurements.
void warn_when_busy();
// Shows on a terminal what is under way, in one line; "" clears it.
ProgressCallback progress_line();

}  // namespace sherd::bench
