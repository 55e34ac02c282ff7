// SPDX-License-Identifier: Apache-2.0
//
// The memory statistics of LibTorch's allocator of a device, read through LibTorch's generic
// interface. docs/design/memory.md. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <c10/core/Device.h>

namespace sherd::device {

// In bytes. Peaks are since reset_memory_peaks().
struct MemoryUse {
  std::int64_t in_use = 0;  // By tensors and other users of the allocator.
  std::int64_t in_use_peak = 0;
  std::int64_t reserved = 0;  // Taken from the device: in use, or free.
  std::int64_t reserved_peak = 0;
};

// Empty if the device's allocator counts nothing, as that of the CPU.
std::optional<MemoryUse> memory_use(c10::Device device);

// Resets the peaks for all readers, because they belong to the device. REQUIRES: memory_use() is
// not empty.
void reset_memory_peaks(c10::Device device);

// Returns memory that is reserved but free to the device, after the work that used it. REQUIRES:
// memory_use() is not empty.
void give_back_free_memory(c10::Device device);

}  // namespace sherd::device
