// SPDX-License-Identifier: Apache-2.0
//
// How `sherd bench faults` shows what it has measured: a table for people and one
// line of JSON for programs. Thread rule: pure functions, any thread.
#pragma once

#include <string>
#include "bench/faults_bench.h"
#include "bench/report_text.h"

namespace sherd::bench {

// Several lines, with the end of the last.
std::string table_of(
    const FaultsConfig& config,
    const FaultsResult& result,
    const BenchmarkContext& context);
std::string table_of(
    const FaultsConfig& config,
    const CostResult& result,
    const BenchmarkContext& context);

// One line without its end. What was not measured is null.
std::string json_of(
    const FaultsConfig& config,
    const FaultsResult& result,
    const BenchmarkContext& context);
std::string json_of(
    const FaultsConfig& config,
    const CostResult& result,
    const BenchmarkContext& context);

}  // namespace sherd::bench
