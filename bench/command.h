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

// Each acts in the callback of its CLI::App, which may throw Error. `status` becomes the exit status
// and must live until then.
void add_step(CLI::App& bench_app, int& status);
void add_collectives(CLI::App& bench_app);
void add_faults(CLI::App& bench_app, int& status);

// Throws if access(2) denies `access` to `path`; the message ends with `remedy`.
void expect_file(const std::string& path, int access, const char* remedy);
void expect_program(const char* name);
// The programs that start and run ranks, and their environment; throws if one is missing.
StepPrograms programs_of_ranks();
// To be called before measuring. Throws in a build whose times would be meaningless; warns on stderr
// if the load of this machine would disturb measurements.
BenchmarkContext benchmark_context();
// Returns what `measure` returns, which is given SIGINT, SIGTERM and SIGHUP, and a line on a terminal
// that shows what is going on; if a signal ends it, the exit status that says so, after a line on
// stderr.
int unless_interrupted(
    const std::function<int(const SignalFd&, const ProgressCallback&)>&
        measure);
// Prints a report, of which programs read the last line.
void print_report(
    bool json_only, const std::string& table, const std::string& json);

}  // namespace sherd::bench
