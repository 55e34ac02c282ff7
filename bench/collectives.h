// SPDX-License-Identifier: Apache-2.0
//
// `sherd bench collectives`: what its ranks measured, and how it is shown. Each rank runs all
// contenders in one process, in turn; rank 0 writes a line for each case and contender, its
// CollectiveTimes as a reply (contender_protocol.h). Thread rule: pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "bench/contender_protocol.h"
#include "bench/report_text.h"

namespace sherd::bench {

// The user's options, as in the flags. Ranks are given those of what is measured.
struct CollectivesOptions {
  int ranks = 2;
  bool json_only = false;  // The report has no table.
  int rounds = 15;
  double block_ms = 30;
  std::int64_t bytes_min = std::int64_t{64} << 10;
  std::int64_t bytes_max = std::int64_t{64} << 20;
  std::string deepspeed{};  // A library; empty runs without it.
};

struct CollectiveTimes {
  std::string operation;
  std::string dtype;
  // What every rank has after an all-gather, or contributes to a reduction.
  std::int64_t bytes = 0;
  std::string contender;
  std::vector<double> round_ms{};
};

// What a rank contributes to the sums that are checked: whole numbers from 1 to 4, so that sums of
// any of up to 64 ranks are exact in bf16, in whatever order.
int checked_value(int rank);

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    CollectiveTimes, operation, dtype, bytes, contender, round_ms)

// Whether there are bytes and positive times, for parse_reply().
bool is_possible(const CollectiveTimes& times);

// For each case the times of each contender, and Gloo's time divided by shm's, which is how many
// times Gloo's bandwidth shm reaches; several lines.
std::string table_of(
    int ranks,
    const std::vector<CollectiveTimes>& all,
    const BenchmarkContext& context);

// One line without its end.
std::string json_of(
    int ranks,
    const std::vector<CollectiveTimes>& all,
    const BenchmarkContext& context);

}  // namespace sherd::bench
