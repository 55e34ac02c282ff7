// SPDX-License-Identifier: Apache-2.0
//
// StepRecorder sees what a step of this process uses: it notes what MemoryMeter counts, when regions run, what waiting for units costs, and how much memory
// there is in all. It decides nothing. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>
#include "base/clock.h"
#include "fsdp/memory_meter.h"
#include "plan/recorded_memory.h"

namespace sherd::fsdp {

struct StepRecord {
  std::vector<plan::MemoryEvent> events;
  // What there is beside the bytes of the events.
  std::int64_t always_bytes = 0;
  // By unit: waiting for all its gathers but the first.
  std::vector<std::int64_t> gather_again_ns;
};

class StepRecorder {
 public:
  // Records from begin_step() to stop(). One for each device of a process at a time counts bytes.
  StepRecorder(int units, std::shared_ptr<MemoryMeter> meter);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  void begin_step();
  // Whether it counts: not while another recorder of this device does.
  bool counts() const { return counts_; }
  void stop();  // Idempotent.

  // Returns whether it is taken: a region inside another is part of that one.
  bool begin_region(int region, plan::MemoryMoment moment);
  void end_region(int region, plan::MemoryMoment moment);

  // Before and after what is timed: on a device the host waits until it is done.
  void settle() const;
  // A gather began or was waited for, which took so long on the thread that uses the unit.
  enum class Gather { kBegins, kGoesOn };
  void note_gather(int unit, Gather gather, Duration waited);

  // Ends the step. REQUIRES: begin_step() was called.
  StepRecord finish_step();

 private:
  void add(plan::MemoryMoment moment, int region);

  const std::shared_ptr<MemoryMeter> meter_;
  const bool counts_;
  mutable std::mutex mu_;  // Guards the rest.
  bool claimed_;
  bool recording_ = false;
  Instant begin_{0};
  bool inside_region_ = false;
  std::int64_t gather_ns_ = 0;
  std::int64_t total_peak_before_ = 0;
  std::int64_t total_bytes_max_ = 0;
  std::int64_t bytes_max_ = 0;  // At and between events.
  std::vector<std::int64_t> gathers_;
  StepRecord record_;
};

}  // namespace sherd::fsdp
