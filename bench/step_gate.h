// SPDX-License-Identifier: Apache-2.0
//
// StepGate lets the ranks of a contender compute steps up to a number that
// `sherd bench` sets, in a page of a file that all of them map: who has no stdin
// can be told nothing in another way. Thread rule: one thread a process.
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

  // Steps up to this number may begin. Never fewer than before.
  void open_until(std::int64_t step);
  // Returns when that step may begin. Throws Error when that takes ten minutes.
  void wait_for(std::int64_t step) const;

 private:
  std::int64_t* page_ = nullptr;
};

}  // namespace sherd::bench
