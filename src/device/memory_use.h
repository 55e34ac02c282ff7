// SPDX-License-Identifier: Apache-2.0
//
// What LibTorch's allocator of a device says of its memory, over LibTorch's generic interface.
// docs/design/memory.md Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <c10/core/Device.h>

namespace sherd::device {

// In bytes. The peaks are those since reset_memory_peaks().
struct MemoryUse {
  std::int64_t in_use = 0;  // By tensors and whatever else asked the allocator.
  std::int64_t in_use_peak = 0;
  std::int64_t reserved = 0;  // Taken from the device: in use, and free.
  std::int64_t reserved_peak = 0;
};

// Empty where the device's allocator counts nothing, as that of the CPU.
std::optional<MemoryUse> memory_use(c10::Device device);

// For all that read them: peaks belong to the device. REQUIRES: memory_use() is not empty.
void reset_memory_peaks(c10::Device device);

// What is reserved and free goes back to the device, after the work that used it. REQUIRES: likewise.
void give_back_free_memory(c10::Device device);

}  // namespace sherd::device
