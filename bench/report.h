// SPDX-License-Identifier: Apache-2.0
//
// How a measurement of `sherd bench step` or `sherd bench faults` is shown: a table for people and
// one line of JSON for programs. Thread rule: pure functions, any thread.
#pragma once

#include <string>
#include "bench/faults_bench.h"
#include "bench/report_text.h"
#include "bench/step_bench.h"

namespace sherd::bench {

// Several lines, ending with a newline.
std::string table_of(
    const StepConfig& config,
    const StepResult& result,
    const BenchmarkContext& context);
std::string table_of(
    const FaultsConfig& config,
    const FaultsResult& result,
    const BenchmarkContext& context);
std::string table_of(
    const FaultsConfig& config,
    const CostResult& result,
    const BenchmarkContext& context);

// One line without a newline. Values that were not measured are null, such as those of contenders
// that did not run, and so are intervals that too few rounds leave open.
std::string json_of(
    const StepConfig& config,
    const StepResult& result,
    const BenchmarkContext& context);
std::string json_of(
    const FaultsConfig& config,
    const FaultsResult& result,
    const BenchmarkContext& context);
std::string json_of(
    const FaultsConfig& config,
    const CostResult& result,
    const BenchmarkContext& context);

}  // namespace sherd::bench
