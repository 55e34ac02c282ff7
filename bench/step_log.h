// SPDX-License-Identifier: Apache-2.0
//
// The log of steps that each rank process of a fault-tolerant contender writes: a line for each
// step, in a file of its own that outlives the process:
//
//   replica-1.rank-0.life-4711     4711 is the process
//
//   begun 0 12.345678 -            the process runs
//   computed 7 13.345678 89ab...   step 7 was committed, with this rank's gradients
//   followed 8 13.845678 -         committed, but this rank had no samples
//   replayed 6 13.045678 -         committed earlier; made from a sum that was fetched
//   dropped 9 14.345678 -          computed, but not committed
//
// Each line has the time of the host's monotonic clock in seconds and a hash of everything that the
// rank trains, or "-". Thread rule: pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::bench {

enum class StepEventKind { kBegun, kComputed, kFollowed, kReplayed, kDropped };

struct StepEvent {
  StepEventKind kind = StepEventKind::kBegun;
  std::int64_t step = 0;  // Counted from 1; 0 if there is none.
  double time_s = 0.0;
  std::optional<std::uint64_t> hash{};
};

std::string line_of(const StepEvent& line);
// Nothing unless the line has exactly that form.
std::optional<StepEvent> parse_step_event(const std::string& line);

struct StepLogName {
  int replica = 0;
  int rank = 0;
  int process = 0;
};

std::string file_name_of(const StepLogName& name);
// Nothing for another file name.
std::optional<StepLogName> parse_file_name(const std::string& name);

struct StepLog {
  StepLogName name;
  std::vector<StepEvent> lines{};  // In order of time.
};

}  // namespace sherd::bench
