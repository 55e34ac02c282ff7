// SPDX-License-Identifier: Apache-2.0
//
// The events of one rank, as base/flight_recorder.h writes them: when an exchange fails, at SIGUSR2,
// and in a profile. Thread rule: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>
#include "base/flight_recorder.h"

namespace sherd::tools {

// An exchange that the rank has made with others.
struct FlightGroup {
  std::string name;
  std::vector<int> ranks;
  std::vector<std::string> units;
};

struct FlightFile {
  int rank = 0;
  int world_size = 1;
  std::string host;
  std::string reason;             // Why the rank failed; empty: it had not.
  std::int64_t unix_ns = 0;       // When it was written,
  std::int64_t monotonic_ns = 0;  // and by the clock of the events.
  std::uint64_t forgotten = 0;    // Events before the first one here.
  std::vector<FlightGroup> groups;
  std::vector<FlightRecord> events;  // In the order of time.
};

// Throws Error, naming the path, for a text that is no such file, or half of one.
FlightFile parse_flight_file(const std::string& text, const std::string& path);

// The rank-N.json of a folder, by rank. Throws Error where there is none, or one is of another
// number of ranks.
std::vector<FlightFile> read_flight_folder(const std::string& folder);

// Moves all times to the clock of the first file's host. The clocks of two hosts are compared where
// ranks of both have ended a step of all ranks, which they do at nearly the same time; where they
// have none in common, by their time of day.
void align_clocks(std::span<FlightFile> files);

// What the event is about: "unshard h.3 in forward", "h.3", or an empty text.
std::string subject_of(const FlightFile& file, const FlightRecord& event);

}  // namespace sherd::tools
