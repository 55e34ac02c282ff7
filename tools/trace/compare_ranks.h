// SPDX-License-Identifier: Apache-2.0
//
// Where ranks went apart, by their events: the first step of all ranks that they want differently, or
// that one of them has not come to. Mirrors PyTorch's fr_trace. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>
#include "trace/flight_file.h"

namespace sherd::tools {

struct RankDifference {
  std::int64_t time_ns = 0;  // When the first rank came there.
  std::string exchange;
  std::string text;  // "at step 7 rank 2 wants to ..., ranks 0 and 1 ...".
};

// The first difference in each exchange, the earliest of all first. Ranks may want different things
// inside a backward, which is none. REQUIRES: align_clocks().
std::vector<RankDifference> compare_ranks(std::span<const FlightFile> files);

// For people: those differences, ranks without a file, and what each rank did last.
std::string comparison_text(std::span<const FlightFile> files);

}  // namespace sherd::tools
