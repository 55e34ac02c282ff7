// SPDX-License-Identifier: Apache-2.0
#include "exchange/gradient_heap.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include <c10/core/CPUAllocator.h>

namespace sherd::exchange {
namespace {

// The heap in which this thread is.
thread_local std::weak_ptr<GradientHeap> current_heap;
thread_local bool in_heap = false;

}  // namespace

// Lives as long as the process: storages keep their allocator, and all that a deleter knows is the
// address.
class HeapAllocator final : public c10::Allocator {
 public:
  static HeapAllocator& instance() {
    static HeapAllocator& only = *std::make_unique<HeapAllocator>().release();
    return only;
  }

  // Without it blocks are never asked for.
  void install() {
    const std::lock_guard lock(mu_);
    if (below_ == nullptr && c10::GetCPUAllocator()->raw_deleter() != nullptr) {
      below_ = c10::GetCPUAllocator();
      c10::SetCPUAllocator(this);
    }
  }
  bool installed() { return c10::GetCPUAllocator() == this; }
  c10::Allocator* below() const { return below_; }
  void set_below(c10::Allocator* allocator) { below_ = allocator; }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (in_heap) {
      if (void* const block = take(bytes)) {
        return {block, block, &free_block, c10::Device(c10::DeviceType::CPU)};
      }
    }
    return below()->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_raw; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mu_); }

  void add(GradientHeap* heap) {
    const std::lock_guard lock(mu_);
    heaps_.emplace(heap->region_.data(), heap);
  }
  void remove(GradientHeap* heap) {
    const std::lock_guard lock(mu_);
    heaps_.erase(heap->region_.data());
  }

 private:
  void* take(std::size_t bytes) {
    const auto heap = current_heap.lock();
    if (!heap || !heap->sizes_.contains(bytes) ||
        heap->closed_.load(std::memory_order_relaxed)) {
      return nullptr;
    }
    const std::lock_guard lock(mu_);
    return heap->take(bytes);
  }

  // False if it is not a block of a heap.
  bool give_back(const void* block) {
    const auto* const address = static_cast<const std::byte*>(block);
    std::shared_ptr<GradientHeap> last;  // Ends without the lock.
    const std::lock_guard lock(mu_);
    auto next = heaps_.upper_bound(address);
    if (next == heaps_.begin()) {
      return false;
    }
    auto* const heap = std::prev(next)->second;
    if (!heap->offset(address, 0)) {
      return false;
    }
    last = heap->give_back(address);
    return true;
  }

  static void free_block(void* block) { instance().give_back(block); }
  // The block's DataPtr was released; it may be one of the allocator below.
  static void free_raw(void* block) {
    if (!instance().give_back(block)) {
      instance().below()->raw_deleter()(block);
    }
  }

  std::atomic<c10::Allocator*> below_ = nullptr;
  std::mutex mu_;
  std::map<const std::byte*, GradientHeap*> heaps_;  // By the region's begin.
};

GradientHeap::GradientHeap(
    std::span<std::byte> region,
    std::set<std::size_t> sizes,
    std::shared_ptr<const void> mapping)
    : region_(region),
      sizes_(std::move(sizes)),
      mapping_(std::move(mapping)),
      free_(static_cast<std::int64_t>(region.size())) {
  HeapAllocator::instance().install();
  HeapAllocator::instance().add(this);
}

GradientHeap::~GradientHeap() { HeapAllocator::instance().remove(this); }

void GradientHeap::enter() {
  current_heap = weak_from_this();
  in_heap = true;
}

void GradientHeap::leave() {
  in_heap = false;
  current_heap.reset();
}

std::optional<std::int64_t> GradientHeap::offset(
    const void* begin, std::size_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(begin);
  const auto* const end = region_.data() + region_.size();
  return first >= region_.data() && first < end &&
          bytes <= static_cast<std::size_t>(end - first)
      ? std::optional<std::int64_t>(first - region_.data())
      : std::nullopt;
}

std::int64_t GradientHeap::bytes() const {
  const auto lock = HeapAllocator::instance().lock();
  return free_.taken_bytes();
}

std::int64_t GradientHeap::bytes_peak() const {
  const auto lock = HeapAllocator::instance().lock();
  return free_.taken_bytes_peak();
}

void* GradientHeap::take(std::size_t bytes) {
  const auto begin = free_.take(static_cast<std::int64_t>(bytes));
  if (!begin) {
    return nullptr;
  }
  if (blocks_++ == 0) {
    self_ = shared_from_this();
  }
  return region_.data() + *begin;
}

std::shared_ptr<GradientHeap> GradientHeap::give_back(const std::byte* block) {
  free_.give_back(block - region_.data());
  return --blocks_ == 0 ? std::exchange(self_, nullptr) : nullptr;
}

c10::Allocator* cpu_allocator() {
  auto& heaps = HeapAllocator::instance();
  return heaps.installed() ? heaps.below() : c10::GetCPUAllocator();
}

void set_cpu_allocator(c10::Allocator* allocator) {
  auto& heaps = HeapAllocator::instance();
  if (heaps.installed()) {
    heaps.set_below(allocator);
  } else {
    c10::SetCPUAllocator(allocator);
  }
}

}  // namespace sherd::exchange
