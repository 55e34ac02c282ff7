// SPDX-License-Identifier: Apache-2.0
//
// The events of all ranks as one trace in Chrome's format, for Perfetto (ui.perfetto.dev) and
// chrome://tracing: a process for each rank, with lanes for compute, unshard, reduce, optimizer and
// wait. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>
#include "trace/flight_file.h"

namespace sherd::tools {

struct TraceSpan {
  // The training thread computes, runs the optimizer or waits, while gathers and reductions go on.
  enum class Lane { kCompute, kUnshard, kReduce, kOptimizer, kWait };

  Lane lane = Lane::kCompute;
  std::string name;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t bytes = 0;
};

// What one rank did, from events that have both begun and ended, in the order of their ends.
// Computing is what the training thread does from one visit of a unit to the next, or to the end of
// the backward, minus its waits; the time of the optimizer goes from there until it publishes.
std::vector<TraceSpan> trace_spans(const FlightFile& file);

// Returns JSON. Spans of one lane that overlap are shown in further lanes, "reduce 2" and so on.
// REQUIRES: align_clocks().
std::string chrome_trace(std::span<const FlightFile> files);

}  // namespace sherd::tools
