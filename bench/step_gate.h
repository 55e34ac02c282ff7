// SPDX-License-Identifier: Apache-2.0
//
// StepGate holds the ranks of a contender back at a step until `sherd bench` allows it, by a number
// in a file that all of them map. Ranks of a fault-tolerant run have no stdin by which to tell
// them. Thread rule: one thread a process.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::bench {

class StepGate {
 public:
  // Makes the file when there is none, closed. Throws Error when it cannot be
  // mapped.
  explicit StepGate(const std::string& path);
  ~StepGate();
  StepGate(const StepGate&) = delete;
  StepGate& operator=(const StepGate&) = delete;

  // Allows steps up to this number. REQUIRES: not fewer than before.
  void open_until(std::int64_t step);
  // Returns when that step may begin. Throws Error when that takes ten minutes.
  void wait_for(std::int64_t step) const;

 private:
  std::int64_t* page_ = nullptr;
};

}  // namespace sherd::bench
