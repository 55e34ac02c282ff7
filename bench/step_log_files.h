// SPDX-License-Identifier: Apache-2.0
//
// StepLogReader reads what the ranks of a fault-tolerant contender write (step_log.h)
// while they write it; StepLogWriter is one rank's end. Thread rule: one thread each.
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
  // Makes the file of this life and says that it has begun. Throws Error when the
  // folder cannot be written to.
  StepLogWriter(const std::string& folder, const StepLogName& name);

  // With the time of the call, whatever `line` says.
  void add(StepEvent line);

 private:
  std::ofstream file_;
};

class StepLogReader {
 public:
  explicit StepLogReader(std::string folder) : folder_(std::move(folder)) {}

  // Takes in what has been written since. A line that is being written stays for
  // the next time; files of others are left alone. Throws Error for a line that
  // is none.
  void read();
  // In the order in which they were found.
  const std::vector<StepLog>& logs() const { return logs_; }

 private:
  struct Source {
    std::size_t log = 0;  // Index in logs_.
    std::int64_t offset = 0;
  };
  void read(const std::string& name, Source& source);

  const std::string folder_;
  std::vector<StepLog> logs_;
  std::map<std::string, Source> sources_;  // By name.
};

}  // namespace sherd::bench
