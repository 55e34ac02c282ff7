// SPDX-License-Identifier: Apache-2.0
//
// The log of steps that each rank process of a fault-tolerant contender writes: a JSON object a line,
// in a file of its own that outlives the process. The first line says whose it is, the others what
// became of a step. StepLogWriter is the writing end, in one rank; StepLogReader reads all files of
// a folder while they are written. Thread rule: one thread each.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sherd::bench {

struct StepEvent {
  enum class Kind {
    kBegun,     // The process runs.
    kComputed,  // The step was committed, with this rank's gradients.
    kFollowed,  // Committed, but this rank had no samples.
    kReplayed,  // Committed earlier; made from a sum that was fetched.
    kDropped    // Computed, but not committed.
  };
  Kind kind = Kind::kBegun;
  std::int64_t step = 0;  // Counted from 1; 0 if there is none.
  double time_s = 0.0;    // By monotonic_s().
  // A hash of everything that the rank trains.
  std::optional<std::uint64_t> hash{};
};

struct StepLog {
  int replica = 0;
  int rank = 0;
  int process = 0;
  std::vector<StepEvent> lines{};  // In order of time.
};

// The host's monotonic clock, which all its processes share.
double monotonic_s();

class StepLogWriter {
 public:
  // Creates the file of a process, which has no lines yet, and logs that it has begun. Throws Error
  // if the folder is not writable.
  StepLogWriter(const std::string& folder, const StepLog& process);

  // Writes the event with the time of the call instead of its own.
  void add(StepEvent event);

 private:
  std::ofstream file_;
};

class StepLogReader {
 public:
  explicit StepLogReader(std::string folder) : folder_(std::move(folder)) {}

  // Reads what has been written since the last call. An incomplete line is left for the next call;
  // other files are ignored. Throws Error for an invalid line.
  void read();
  // In the order in which they were found.
  const std::vector<StepLog>& logs() const { return logs_; }

 private:
  struct Source {
    std::optional<std::size_t> log{};  // The index in logs_.
    std::int64_t offset = 0;
  };
  void read(const std::string& path, Source& source);
  void take(const std::string& line, Source& source);

  const std::string folder_;
  std::vector<StepLog> logs_;
  std::map<std::string, Source> sources_;  // Keyed by path.
};

}  // namespace sherd::bench
