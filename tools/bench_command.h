// SPDX-License-Identifier: Apache-2.0
//
// What the subcommands of `sherd bench` have in common. Thread rule: one
// thread.
#pragma once

#include <functional>
#include <string>
#include "bench/report.h"
#include "bench/step_bench.h"

namespace CLI {
class App;
}

namespace sherd::tools {

struct BenchCommand {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

// sherd bench collectives.
BenchCommand add_collectives(CLI::App& bench_app);
// sherd bench faults.
BenchCommand add_faults(CLI::App& bench_app);

// Throws where times would mean nothing.
void expect_release_build();
// Beside this program; throws when there is none.
std::string path_of_program(const char* name);
void expect_program(const char* name);
// What starts ranks, and with which environment; throws when there is none.
bench::StepPrograms programs_of_ranks();
bench::BenchmarkContext benchmark_context();
void warn_when_busy();
// Shows on a terminal what is under way, in one line; "" clears it.
bench::ProgressCallback progress_line();

}  // namespace sherd::tools
