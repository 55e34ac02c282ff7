// SPDX-License-Identifier: Apache-2.0
#include "device/memory_use.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include "base/check.h"

namespace sherd::device {
namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

c10::DeviceAllocator* counting_allocator(c10::Device device) {
  auto* allocator = device.is_cpu()
      ? nullptr
      : dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

const c10::CachingAllocator::Stat& sum_of(const StatArray& stats) {
  return stats.at(static_cast<std::size_t>(StatType::AGGREGATE));
}

}  // namespace

std::optional<MemoryUse> memory_use(c10::Device device) {
  auto* allocator = counting_allocator(device);
  if (allocator == nullptr) {
    return std::nullopt;
  }
  const auto stats = allocator->getDeviceStats(device.index());
  const auto& in_use = sum_of(stats.allocated_bytes);
  const auto& reserved = sum_of(stats.reserved_bytes);
  return MemoryUse{
      .in_use = in_use.current,
      .in_use_peak = in_use.peak,
      .reserved = reserved.current,
      .reserved_peak = reserved.peak};
}

void reset_memory_peaks(c10::Device device) {
  auto* allocator = counting_allocator(device);
  SHERD_ASSERT(allocator != nullptr);
  allocator->resetPeakStats(device.index());
}

void give_back_free_memory(c10::Device device) {
  auto* allocator = counting_allocator(device);
  SHERD_ASSERT(allocator != nullptr);
  const c10::DeviceGuard on(device);
  allocator->emptyCache();
}

}  // namespace sherd::device
