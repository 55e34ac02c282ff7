// SPDX-License-Identifier: Apache-2.0
//
// StepGate holds back the ranks of a contender at a step until `sherd bench` permits it, through a
// number in a file that all of them map. Ranks of a fault-tolerant run have no stdin through which
// to tell them. Thread rule: one thread per process.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::bench {

class StepGate {
 public:
  // Creates the file, closed, if it does not exist. Throws Error if it cannot be mapped.
  explicit StepGate(const std::string& path);
  ~StepGate();
  StepGate(const StepGate&) = delete;
  StepGate& operator=(const StepGate&) = delete;

  // Permits steps up to this number. REQUIRES: no fewer than before.
  void open_until(std::int64_t step);
  // Returns when that step may begin. Throws Error if that takes ten minutes.
  void wait_for(std::int64_t step) const;

 private:
  std::int64_t* page_ = nullptr;
};

}  // namespace sherd::bench
