// SPDX-License-Identifier: Apache-2.0
//
// StepRecorder records what a step of this process uses: the counts of MemoryMeter, when regions
// run, the time spent waiting for units, and the total memory. It decides nothing. Thread rule: any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>
#include "base/clock.h"
#include "fsdp/memory_meter.h"
#include "plan/recorded_memory.h"

namespace sherd::fsdp {

class StepRecorder {
 public:
  struct Record {
    std::vector<plan::MemoryEvent> events;
    // The bytes that exist besides those of the events.
    std::int64_t always_bytes = 0;
    // By unit: the time spent waiting for all its gathers except the first.
    std::vector<std::int64_t> gather_again_ns;
  };

  // Records from begin_step() to stop(). Only one at a time counts the bytes of a device of the
  // process.
  StepRecorder(int units, std::shared_ptr<MemoryMeter> meter);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  void begin_step();
  // Whether it counts bytes: not while another recorder of this device does.
  bool counts() const { return counts_; }
  void stop();  // Idempotent.

  // Returns whether the region is recorded: one inside another is part of the outer one.
  bool begin_region(int region, plan::MemoryMoment moment);
  void end_region(int region, plan::MemoryMoment moment);

  // Called before and after what is timed: on a device the host waits until the work is done.
  void settle() const;
  // A gather was started or waited for, which took this long on the thread that uses the unit.
  enum class Gather { kBegins, kGoesOn };
  void note_gather(int unit, Gather gather, Duration waited);

  // Ends the step. REQUIRES: begin_step() was called.
  Record finish_step();

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
  std::int64_t bytes_max_ = 0;  // At events and between them.
  std::vector<std::int64_t> gathers_;
  Record record_;
};

}  // namespace sherd::fsdp
