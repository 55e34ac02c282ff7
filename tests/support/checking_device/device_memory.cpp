// SPDX-License-Identifier: Apache-2.0
//
// Memory of the checking device, ordered by streams as the CUDA caching allocator's is: a block
// belongs to the stream it was allocated on, and once freed serves that stream again at once.
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <tuple>

#include <c10/core/Allocator.h>

#include "base/check.h"
#include "support/checking_device/device_state.h"

namespace sherd::test {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{1} << 33U;  // Of addresses.
constexpr std::size_t kBlockBytes = 512;

// Device addresses fault when the host touches them; the same bytes lie kArenaBytes further, for
// operators.
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

// Guarded by DeviceState::mu.
struct Heap {
  std::multimap<std::pair<QueueId, std::size_t>, void*> free_blocks;
  std::size_t used = 0;
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
  heap().free_blocks.emplace(
      std::pair(block->stream, block->bytes), block->address);
}

class DeviceAllocator final : public c10::Allocator {
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

 private:
  // Its stream may still work with what the block held before, so that other streams come after the
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
      return free_blocks.extract(found).mapped();
    }
    TORCH_CHECK(
        state.of(block.device).capture == 0, "[checking device] ", block.bytes,
        " bytes on stream ", block.stream, " are new memory, in a capture");
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
  static DeviceAllocator allocator;
  c10::SetAllocator(c10::kPrivateUse1, &allocator);
}

}  // namespace sherd::test
