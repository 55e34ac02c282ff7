// SPDX-License-Identifier: Apache-2.0
//
// The events of one rank, as base/flight_recorder.h writes them: when an exchange fails, at
// SIGUSR2, and for a profile. Thread rule: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>
#include "base/flight_recorder.h"

namespace sherd::tools {

struct FlightFile {
  // An exchange that the rank has made with others.
  struct Group {
    std::string name;
    std::vector<int> ranks;
    std::vector<std::string> units;
  };

  int rank = 0;
  int world_size = 1;
  std::string host;
  std::string run;           // Empty in files of the first versions.
  std::string reason;        // Why the rank failed; empty if it had not.
  std::int64_t unix_ns = 0;  // When it was written,
  // and the same time by the clock of the events.
  std::int64_t monotonic_ns = 0;
  // How many events came before the first one here.
  std::uint64_t forgotten = 0;
  std::vector<Group> groups;
  std::vector<FlightRecord> events;  // In the order of time.
};

// Throws Error, naming the path, for text that is no such file or is incomplete.
FlightFile parse_flight_file(const std::string& text, const std::string& path);

// The rank-N.json files of a folder, by rank, of the run that has written last: earlier ones may
// have left files of ranks that this one lacks, or that were killed. Throws Error if there is none,
// or if one is from a different number of ranks.
std::vector<FlightFile> read_flight_folder(const std::string& folder);

// Converts all times to the clock of the first file's host. The clocks of two hosts are compared by
// a step of all ranks that ranks of both have ended, which they do at nearly the same time; if
// there is none, by their time of day.
void align_clocks(std::span<FlightFile> files);

// The subject of the event: "unshard h.3 in forward", "h.3", or an empty text.
std::string subject_of(const FlightFile& file, const FlightRecord& event);

}  // namespace sherd::tools
