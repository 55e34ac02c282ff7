// SPDX-License-Identifier: Apache-2.0
//
// What the reports of `sherd bench` share: numbers as text and as JSON, and where they were
// measured. Thread rule: pure functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>
#include <nlohmann/json.hpp>
#include "bench/statistics.h"
#include "format_text.h"

namespace sherd::bench {

using Json = nlohmann::ordered_json;

// Where and with what a measurement was made.
struct BenchmarkContext {
  std::string sherd_version;
  std::string commit;   // That of the checkout; "unknown" outside one.
  std::string build;    // "Release, GNU 12.2.0".
  std::string machine;  // "AMD EPYC, 2 cores, load 0.03".
};

using tools::format;

// "1.10-1.40", or "open" below 6 values.
std::string interval_text(const MedianEstimate& estimate, int digits);

// "1.230 (1.100-1.400)", the median of the values; "-" if there are none.
std::string median_text(const std::vector<double>& values);

// Five digits, more than are known of any value; null if it is not finite or missing.
Json number(std::optional<double> value);

// Adds NAME, NAME_low and NAME_high; null if there is no estimate.
void put(
    Json& json,
    const std::string& name,
    const std::optional<MedianEstimate>& estimate);

// Adds sherd_version, commit, build and machine.
void put(Json& json, const BenchmarkContext& context);

}  // namespace sherd::bench
