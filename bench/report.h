// SPDX-License-Identifier: Apache-2.0
//
// How a measurement is shown: a table for people and one line of JSON for
// programs. Thread rule: pure functions, any thread.
#pragma once

#include <string>
#include "bench/step_bench.h"

namespace sherd::bench {

// Where it was measured, and what.
struct BenchmarkContext {
  std::string sherd_version;
  std::string commit;   // The checkout's; "unknown" outside one.
  std::string build;    // "Release, GNU 12.2.0".
  std::string machine;  // "AMD EPYC, 2 cores, load 0.03".
};

// Several lines, with the end of the last.
std::string table_of(
    const StepConfig& config,
    const StepResult& result,
    const BenchmarkContext& context);

// One line without its end. Times, ratios and intervals of contenders that did
// not run are null, and so is an interval that too few rounds leave open.
std::string json_of(
    const StepConfig& config,
    const StepResult& result,
    const BenchmarkContext& context);

}  // namespace sherd::bench
