// SPDX-License-Identifier: Apache-2.0
//
// MemoryMeter measures the memory that a model's process uses where its parameters lie: on the
// host, as the kernel and CachingAllocator count it, or on one device, as LibTorch's allocator
// counts it. Thread rule: any thread. Mechanism: docs/design/memory.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <c10/core/Device.h>

namespace sherd::fsdp {

class MemoryMeter {
 public:
  virtual ~MemoryMeter() = default;

  // Only one recorder at a time may take the peaks of steps: returns whether it is the caller, which
  // calls unclaim() when it has ended.
  bool claim() { return !claimed_.exchange(true, std::memory_order_acquire); }
  // Release: pairs with the next recorder's claim().
  void unclaim() { claimed_.store(false, std::memory_order_release); }

  // Counts what is in use, and its peaks, from now on, until stop(). Each model calls both once.
  virtual void start() = 0;
  virtual void stop() = 0;
  // Whether what is in use can be counted. If not, bytes() is 0.
  virtual bool counts() const = 0;

  // The bytes in use by tensors.
  virtual std::int64_t bytes() const = 0;
  // The most bytes in use since the last call.
  virtual std::int64_t take_peak() = 0;

  // What the limit is for: all memory of the process.
  virtual std::int64_t total_bytes() const = 0;
  // Its peak, since start() or earlier.
  virtual std::int64_t total_bytes_peak() const = 0;
  // The smallest that total_bytes() could be now: after free memory was returned.
  virtual std::int64_t total_bytes_in_use() = 0;
  virtual void give_back_free_memory() = 0;

  // The host waits for the work that this thread has queued on the device, so that clocks measure
  // how long it took.
  virtual void settle() const {}

 private:
  std::atomic<bool> claimed_ = false;
};

// The process has one for each device, whoever asks: allocators keep their peaks for everybody, so
// that taking one of them would lose another.
std::shared_ptr<MemoryMeter> memory_meter_of(c10::Device device);

}  // namespace sherd::fsdp
