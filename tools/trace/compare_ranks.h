// SPDX-License-Identifier: Apache-2.0
//
// Where ranks diverged, according to their events: the first step of all ranks for which they want
// different things, or that one of them has not reached. Mirrors PyTorch's fr_trace. Thread rule:
// pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>
#include "trace/flight_file.h"

namespace sherd::tools {

struct RankDifference {
  std::int64_t time_ns = 0;  // When the first rank reached it.
  std::string exchange;
  std::string text;  // "at request 7 rank 2 wants to ..., ranks 0 and 1 ...".
};

// The first difference in each exchange, the earliest of all first. Inside a backward ranks may
// want different things, which is no difference. Nor is it one that a rank had not come to a
// request when it wrote its file, if it had not failed and others still went on after that.
// REQUIRES: align_clocks().
std::vector<RankDifference> compare_ranks(std::span<const FlightFile> files);

// For people: the differences, ranks without a file, and what each rank did last.
std::string comparison_text(std::span<const FlightFile> files);

}  // namespace sherd::tools
