// SPDX-License-Identifier: Apache-2.0
#include "fsdp/memory_meter.h"

#include <malloc.h>
#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include "base/host.h"
#include "device/memory_use.h"
#include "device/stream.h"
#include "fsdp/caching_allocator.h"

namespace sherd::fsdp {
namespace {

class HostMeter final : public MemoryMeter {
 public:
  void start() override {
    const std::lock_guard lock(mu_);
    models_.emplace_back();
  }
  void stop() override {
    const std::lock_guard lock(mu_);
    models_.pop_back();
  }
  bool counts() const override { return CachingAllocator::installed(); }
  std::int64_t bytes() const override { return CachingAllocator::bytes(); }
  std::int64_t take_peak() override { return CachingAllocator::take_peak(); }
  std::int64_t total_bytes() const override { return resident_bytes(); }
  std::int64_t total_bytes_peak() const override {
    return resident_bytes_peak();
  }
  std::int64_t total_bytes_in_use() override {
    give_back_free_memory();
    return resident_bytes();
  }
  void give_back_free_memory() override {
    CachingAllocator::release_cached();
    ::malloc_trim(0);
  }

 private:
  std::mutex mu_;
  // One for each that has started and not stopped. Guarded by mu_.
  std::deque<CachingAllocator> models_;
};

class DeviceMeter final : public MemoryMeter {
 public:
  explicit DeviceMeter(c10::Device device) : device_(device) {}

  void start() override {
    const std::lock_guard lock(mu_);
    if (++models_ > 1) {
      return;  // The peaks are those of another model, too.
    }
    give_back_free_memory();
    device::reset_memory_peaks(device_);
    total_bytes_peak_ = 0;
  }
  void stop() override {
    const std::lock_guard lock(mu_);
    --models_;
  }
  bool counts() const override {
    return device::memory_use(device_).has_value();
  }
  std::int64_t bytes() const override { return use().in_use; }
  std::int64_t take_peak() override {
    const std::lock_guard lock(mu_);
    const auto now = use();
    total_bytes_peak_ = std::max(total_bytes_peak_, now.reserved_peak);
    device::reset_memory_peaks(device_);
    return now.in_use_peak;
  }
  std::int64_t total_bytes() const override { return use().reserved; }
  std::int64_t total_bytes_peak() const override {
    const std::lock_guard lock(mu_);
    return std::max(total_bytes_peak_, use().reserved_peak);
  }
  // What is free may lie in blocks of which a part is in use.
  std::int64_t total_bytes_in_use() override {
    give_back_free_memory();
    return use().in_use;
  }
  void give_back_free_memory() override {
    device::give_back_free_memory(device_);
  }
  void settle() const override {
    device::Stream::current(device_).record().synchronize();
  }

 private:
  device::MemoryUse use() const { return device::memory_use(device_).value(); }

  const c10::Device device_;
  // The rest is guarded by mu_.
  mutable std::mutex mu_;
  int models_ = 0;                     // That have started and not stopped.
  std::int64_t total_bytes_peak_ = 0;  // Until peaks were reset.
};

}  // namespace

std::shared_ptr<MemoryMeter> memory_meter_of(c10::Device device) {
  static std::mutex mu;
  static std::map<std::string, std::weak_ptr<MemoryMeter>> meters;
  const std::lock_guard lock(mu);
  auto& known = meters[device.str()];
  auto meter = known.lock();
  if (meter == nullptr) {
    if (device.is_cpu()) {
      meter = std::make_shared<HostMeter>();
    } else {
      meter = std::make_shared<DeviceMeter>(device);
    }
    known = meter;
  }
  return meter;
}

}  // namespace sherd::fsdp
