// SPDX-License-Identifier: Apache-2.0
//
// GradientHeap lends memory of a region that other ranks can read to the large gradients that
// autograd makes, so that nobody has to copy them there. While a thread is inside, LibTorch's CPU
// allocator takes blocks of a gradient's size from the heap, also for other tensors of that size.
// Where there is no room, tensors lie in LibTorch's own memory. Thread rule: any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <c10/core/Allocator.h>
#include "exchange/shared_layout.h"

namespace sherd::exchange {

class GradientHeap : public std::enable_shared_from_this<GradientHeap> {
 public:
  // Blocks have one of these sizes, in bytes. The region is mapped while `mapping` lives, of which
  // blocks in use keep a part.
  GradientHeap(
      std::span<std::byte> region,
      std::set<std::size_t> sizes,
      std::shared_ptr<const void> mapping);
  ~GradientHeap();
  GradientHeap(const GradientHeap&) = delete;
  GradientHeap& operator=(const GradientHeap&) = delete;

  // From now on this thread's new tensors may lie here, and in no other heap, until leave(), or
  // until nobody owns this heap any more.
  void enter();
  static void leave();

  // From now on no block is taken.
  void close() { closed_.store(true, std::memory_order_relaxed); }

  // The bytes of blocks in use.
  std::int64_t bytes() const;
  std::int64_t bytes_peak() const;

  // Where the bytes begin in the region; nothing if they lie elsewhere.
  std::optional<std::int64_t> offset(
      const void* begin, std::size_t bytes) const;

 private:
  friend class HeapAllocator;
  void* take(std::size_t bytes);
  // Returns what keeps the heap alive if that was the last block in use.
  std::shared_ptr<GradientHeap> give_back(const std::byte* block);

  const std::span<std::byte> region_;
  const std::set<std::size_t> sizes_;
  const std::shared_ptr<const void> mapping_;
  std::atomic<bool> closed_ = false;
  // Guarded by the mutex of HeapAllocator.
  RegionAllocator free_;
  std::int64_t blocks_ = 0;
  std::shared_ptr<GradientHeap> self_;  // While there are blocks in use.
};

// LibTorch's CPU allocator apart from heaps: what an allocator that takes its place wraps, and
// where it has to be set.
c10::Allocator* cpu_allocator();
void set_cpu_allocator(c10::Allocator* allocator);

}  // namespace sherd::exchange
