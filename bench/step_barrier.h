// SPDX-License-Identifier: Apache-2.0
//
// StepBarrier is a barrier for the bound's processes, which map one page of shared memory. It spins
// for some milliseconds before it sleeps (docs/design/benchmarks.md). Thread rule: one thread per
// process.
#pragma once

#include <cstdint>
#include <string>
#include "shm/counter.h"

namespace sherd::bench {

class StepBarrier {
 public:
  // `path` is a file of at least kBytes zero bytes that all `ranks` processes open. Throws Error if
  // it cannot be mapped.
  StepBarrier(const std::string& path, int ranks);
  ~StepBarrier();
  StepBarrier(const StepBarrier&) = delete;
  StepBarrier& operator=(const StepBarrier&) = delete;

  // Returns when every rank has called it as often as this one. Throws Error if that takes a
  // minute.
  void wait();

  static constexpr int kBytes = 4096;

 private:
  shm::CounterCell* arrivals_ = nullptr;  // Zero, like the file.
  const int ranks_;
  std::uint64_t waits_ = 0;
};

}  // namespace sherd::bench
