// SPDX-License-Identifier: Apache-2.0
//
// StepRecorder sees what a step of this process uses: it notes what CachingAllocator counts, when regions run, what waiting for units costs, and how much memory is
// resident. It decides nothing. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>
#include "base/clock.h"
#include "plan/recorded_memory.h"

namespace sherd::fsdp {

struct StepRecord {
  std::vector<plan::MemoryEvent> events;
  // What is resident beside the bytes of the events.
  std::int64_t always_bytes = 0;
  // By unit: waiting for all its gathers but the first.
  std::vector<std::int64_t> gather_again_ns;
};

class StepRecorder {
 public:
  // Records from begin_step() to stop(). One of a process at a time counts bytes.
  explicit StepRecorder(int units);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  void begin_step();
  // Whether it counts: not while another recorder of this process does.
  bool counts() const { return counts_; }
  void stop();  // Idempotent.

  // Returns whether it is taken: a region inside another is part of that one.
  bool begin_region(int region, plan::MemoryMoment moment);
  void end_region(int region, plan::MemoryMoment moment);

  // A gather began or was waited for, which took so long on the thread that uses the unit.
  enum class Gather { kBegins, kGoesOn };
  void note_gather(int unit, Gather gather, Duration waited);

  // Ends the step. REQUIRES: begin_step() was called.
  StepRecord finish_step();

 private:
  void add(plan::MemoryMoment moment, int region);

  const bool counts_;
  std::mutex mu_;  // Guards the rest.
  bool claimed_;
  bool recording_ = false;
  Instant begin_{0};
  bool inside_region_ = false;
  std::int64_t gather_ns_ = 0;
  std::int64_t resident_peak_before_ = 0;
  std::int64_t resident_bytes_max_ = 0;
  std::int64_t bytes_max_ = 0;  // At and between events.
  std::vector<std::int64_t> gathers_;
  StepRecord record_;
};

}  // namespace sherd::fsdp
