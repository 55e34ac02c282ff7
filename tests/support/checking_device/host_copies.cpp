// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory of the checking device's host, and copies between it and the device for which the
// host has not waited yet. The bytes of copies to the host appear when the host has waited; until
// then the memory holds something else, except for copies that the device makes after them. The
// bytes of copies from the host must stay unchanged until then.
#include <algorithm>
#include <cstring>

#include <c10/core/impl/alloc_cpu.h>

#include "support/checking_device/device_state.h"

namespace sherd::test {
namespace {

// Floats made of these bytes are NaN.
constexpr int kNotThereYet = 0xff;

void free_pinned(void* memory) {
  auto& state = device_state();
  {
    const std::lock_guard lock(state.mu);
    const auto found = state.pinned.find(memory);
    const auto* begin = static_cast<char*>(memory);
    const auto* end = begin + found->second;
    state.host_copies.remove_if([&](const HostCopy& copy) {
      return copy.place >= begin && copy.place < end;
    });
    state.pinned.erase(found);
  }
  c10::free_cpu(memory);
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, c10::kCPU};
    }
    void* memory = c10::alloc_cpu(bytes);
    const std::lock_guard lock(device_state().mu);
    device_state().pinned[memory] = bytes;
    return {memory, memory, &free_pinned, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }
};

}  // namespace

c10::Allocator* pinned_allocator() {
  static PinnedAllocator allocator;
  return &allocator;
}

bool is_pinned(const void* memory) {
  const auto& state = device_state();
  const std::lock_guard lock(device_state().mu);
  auto found = state.pinned.upper_bound(const_cast<void*>(memory));
  return found != state.pinned.begin() &&
      static_cast<const char*>(memory) <
      static_cast<char*>((--found)->first) + found->second;
}

std::vector<char> bytes_for_device(
    c10::Device device, const void* place, std::size_t bytes) {
  auto& state = device_state();
  const std::lock_guard lock(state.mu);
  const auto& stream = state.streams[thread_state().stream(device.index())];
  const auto* begin = static_cast<const char*>(place);
  const auto* end = begin + bytes;
  std::vector<char> seen(begin, end);
  for (const auto& copy : state.host_copies) {
    const char* from = std::max<const char*>(begin, copy.place);
    const char* until =
        std::min<const char*>(end, copy.place + copy.bytes.size());
    if (copy.to_host && from < until &&
        stream.covers(copy.queue, copy.number)) {
      std::copy_n(
          copy.bytes.begin() + (from - copy.place), until - from,
          seen.begin() + (from - begin));
    }
  }
  return seen;
}

void note_host_copy(
    c10::Device device,
    void* place,
    const std::vector<char>& bytes,
    bool to_host) {
  auto& state = device_state();
  const std::lock_guard lock(state.mu);
  HostCopy copy;
  copy.queue = thread_state().stream(device.index());
  copy.number =
      thread_state().last_number.at(static_cast<std::size_t>(device.index()));
  copy.place = static_cast<char*>(place);
  copy.to_host = to_host;
  copy.bytes = bytes;
  if (to_host) {
    // The device may write what it has read before, in an order that it knows.
    const auto& before = state.streams[copy.queue];
    state.host_copies.remove_if([&](const HostCopy& other) {
      return !other.to_host && other.place < copy.place + bytes.size() &&
          copy.place < other.place + other.bytes.size() &&
          before.covers(other.queue, other.number);
    });
    std::memset(place, kNotThereYet, bytes.size());
  }
  state.host_copies.push_back(std::move(copy));
}

void DeviceState::finish_host_copies(OneDevice& device) {
  for (auto copy = host_copies.begin(); copy != host_copies.end();) {
    if (!device.host.covers(copy->queue, copy->number)) {
      ++copy;
      continue;
    }
    if (copy->to_host) {
      std::ranges::copy(copy->bytes, copy->place);
    } else if (!std::ranges::equal(
                   copy->bytes, std::span(copy->place, copy->bytes.size()))) {
      device.faults.push_back(
          "[checking device] pinned memory that aten::copy_ reads was written "
          "before the host had waited for it");
    }
    copy = host_copies.erase(copy);
  }
}

}  // namespace sherd::test
