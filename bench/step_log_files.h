// SPDX-License-Identifier: Apache-2.0
//
// StepLogReader reads what the ranks of a fault-tolerant contender write (step_log.h) while they
// write it; StepLogWriter is the writing end, in one rank. Thread rule: one thread each.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>
#include "bench/step_log.h"

namespace sherd::bench {

// The host's monotonic clock, which all its processes share.
double monotonic_s();

class StepLogWriter {
 public:
  // Creates this process's file and logs that it has begun. Throws Error if the folder is not
  // writable.
  StepLogWriter(const std::string& folder, const StepLogName& name);

  // Writes the line with the time of the call instead of its own.
  void add(StepEvent line);

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
    std::size_t log = 0;  // The index in logs_.
    std::int64_t offset = 0;
  };
  void read(const std::string& name, Source& source);

  const std::string folder_;
  std::vector<StepLog> logs_;
  std::map<std::string, Source> sources_;  // Keyed by name.
};

}  // namespace sherd::bench
