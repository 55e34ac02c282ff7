// SPDX-License-Identifier: Apache-2.0
//
// MemoryMeter says how much memory a model's process has where its parameters lie: on the host, as
// the kernel and CachingAllocator count it, or on one device, as LibTorch's allocator there does.
// Thread rule: any thread. Mechanism: docs/design/memory.md.
#pragma once

#include <cstdint>
#include <memory>
#include <c10/core/Device.h>

namespace sherd::fsdp {

class MemoryMeter {
 public:
  virtual ~MemoryMeter() = default;

  // Where the memory is; one recorder at a time may measure it.
  virtual c10::Device device() const = 0;

  // Counts what is in use, and peaks, from now on, until stop(). Each model calls both once.
  virtual void start() = 0;
  virtual void stop() = 0;
  // False where what is in use cannot be counted: it is 0 then.
  virtual bool counts() const = 0;

  // In use by tensors.
  virtual std::int64_t bytes() const = 0;
  // The most in use since the last call.
  virtual std::int64_t take_peak() = 0;

  // What the limit is for: all that the process has.
  virtual std::int64_t total_bytes() const = 0;
  // The most, since start() or before.
  virtual std::int64_t total_bytes_peak() const = 0;
  // The least that total_bytes() may be now: once what is free was given back.
  virtual std::int64_t total_bytes_in_use() = 0;
  virtual void give_back_free_memory() = 0;

  // The host waits for what this thread has given the device, so that clocks tell how long that took.
  virtual void settle() const {}
};

std::shared_ptr<MemoryMeter> make_memory_meter(c10::Device device);

}  // namespace sherd::fsdp
