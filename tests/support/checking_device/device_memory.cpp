// SPDX-License-Identifier: Apache-2.0
//
// The memory of the checking device, ordered by streams like that of the CUDA caching allocator: a
// block belongs to the stream on which it was allocated, and once freed it serves that stream again
// at once. Bytes are counted in the same way.
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <map>
#include <tuple>

#include <c10/core/CachingDeviceAllocator.h>

#include "base/check.h"
#include "support/checking_device/device_state.h"

namespace sherd::test {
namespace {

// The size of the address range.
constexpr std::size_t kArenaBytes = std::size_t{1} << 33U;
constexpr std::size_t kBlockBytes = 512;

// Device addresses fault when the host accesses them; the same bytes lie kArenaBytes further on,
// for operators.
char* arena() {
  static char* const base = [] {
    void* memory = ::mmap(
        nullptr, 2 * kArenaBytes, PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    SHERD_ASSERT(memory != MAP_FAILED);
    auto* first = static_cast<char*>(memory);
    SHERD_ASSERT(
        ::mprotect(first + kArenaBytes, kArenaBytes, PROT_READ | PROT_WRITE) ==
        0);
    return first;
  }();
  return base;
}

struct Block {
  void* address = nullptr;
  std::size_t bytes = 0;
  c10::DeviceIndex device = 0;
  QueueId stream = 0;
  std::vector<QueueId> kept_for;  // recordDataPtrOnStream().
};

struct FreeBlock {
  void* address = nullptr;
  c10::DeviceIndex device = 0;
};

// Bytes of a device.
struct Counted {
  c10::CachingAllocator::Stat in_use, reserved;
};

// Guarded by DeviceState::mu.
struct Heap {
  std::multimap<std::pair<QueueId, std::size_t>, FreeBlock> free_blocks;
  // Blocks of no stream, by size.
  std::multimap<std::size_t, void*> given_back;
  std::size_t used = 0;
  std::array<Counted, kCheckingDevices> counted;

  Counted& of(c10::DeviceIndex device) {
    return counted.at(static_cast<std::size_t>(device));
  }
};

Heap& heap() {
  static Heap heap;
  return heap;
}

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  auto& state = device_state();
  const std::lock_guard lock(state.mu);
  auto& clock = state.streams[block->stream];
  clock.merge(state.of(block->device).host);
  for (const auto stream : block->kept_for) {
    clock.merge(state.streams[stream]);
  }
  auto fault = state.note(
      block->stream, clock.tick(block->stream), "a free",
      {block->address, block->bytes, AccessKind::kFree});
  if (!fault.empty()) {
    state.of(block->device).faults.push_back(std::move(fault));
  }
  heap().of(block->device).in_use.decrease(block->bytes);
  heap().free_blocks.emplace(
      std::pair(block->stream, block->bytes),
      FreeBlock{block->address, block->device});
}

// Counted as LibTorch does.
c10::CachingAllocator::StatArray sum_of(
    const c10::CachingAllocator::Stat& stat) {
  c10::CachingAllocator::StatArray stats{};
  stats[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)] =
      stat;
  return stats;
}

class CheckingAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t wanted) override {
    const auto index = thread_state().device;
    auto block = std::make_unique<Block>();
    block->bytes = (wanted + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    block->device = index;
    block->stream = thread_state().stream(index);
    auto& state = device_state();
    const std::lock_guard lock(state.mu);
    block->address = take(state, *block);
    heap().of(index).in_use.increase(block->bytes);
    allocated(state, *block);
    void* address = wanted == 0 ? nullptr : block->address;
    return {
        address, block.release(), &free_block,
        c10::Device(c10::kPrivateUse1, index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(host_view(to), host_view(from), count);
  }

  bool initialized() override { return true; }
  // Releases the free memory of the current device.
  void emptyCache(c10::MempoolId_t /*pool*/) override {
    const std::lock_guard lock(device_state().mu);
    std::erase_if(heap().free_blocks, [](const auto& item) {
      const auto& [key, block] = item;
      const bool mine = block.device == thread_state().device;
      if (mine) {
        heap().of(block.device).reserved.decrease(key.second);
        heap().given_back.emplace(key.second, block.address);
      }
      return mine;
    });
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    keep_for_stream(data, stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex device) override {
    const std::lock_guard lock(device_state().mu);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes = sum_of(heap().of(device).in_use);
    stats.reserved_bytes = sum_of(heap().of(device).reserved);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(device_state().mu);
    heap().of(device).in_use.reset_accumulated();
    heap().of(device).reserved.reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(device_state().mu);
    heap().of(device).in_use.reset_peak();
    heap().of(device).reserved.reset_peak();
  }

 private:
  // Its stream may still be using what the block held before, so other streams come after the
  // allocation.
  static void allocated(DeviceState& state, const Block& block) {
    const auto begin = reinterpret_cast<std::uintptr_t>(block.address);
    state.history.forget({begin, begin + block.bytes});
    auto& clock = state.streams[block.stream];
    clock.merge(state.of(block.device).host);
    (void)state.note(
        block.stream, clock.tick(block.stream), "an allocation",
        {block.address, block.bytes, AccessKind::kWrite});
  }
  static void* take(DeviceState& state, const Block& block) {
    TORCH_CHECK(
        block.bytes <= state.of(block.device).bytes_max,
        "[checking device] out of memory");
    auto& free_blocks = heap().free_blocks;
    const auto found = free_blocks.find({block.stream, block.bytes});
    if (found != free_blocks.end()) {
      return free_blocks.extract(found).mapped().address;
    }
    TORCH_CHECK(
        state.of(block.device).capture == 0, "[checking device] ", block.bytes,
        " bytes on stream ", block.stream, " are new memory, in a capture");
    heap().of(block.device).reserved.increase(block.bytes);
    auto& given_back = heap().given_back;
    if (const auto again = given_back.find(block.bytes);
        again != given_back.end()) {
      return given_back.extract(again).mapped();
    }
    TORCH_CHECK(heap().used + block.bytes <= kArenaBytes, "out of memory");
    void* address = arena() + heap().used;
    heap().used += block.bytes;
    return address;
  }
};

}  // namespace

void* host_view(const void* device_address) {
  return device_address == nullptr
      ? nullptr
      : const_cast<char*>(static_cast<const char*>(device_address)) +
          kArenaBytes;
}

void keep_for_stream(const c10::DataPtr& data, QueueId stream) {
  if (data.get_deleter() == &free_block) {
    const std::lock_guard lock(device_state().mu);
    static_cast<Block*>(data.get_context())->kept_for.push_back(stream);
  }
}

void register_allocator() {
  static CheckingAllocator allocator;
  c10::SetAllocator(c10::kPrivateUse1, &allocator);
}

}  // namespace sherd::test
