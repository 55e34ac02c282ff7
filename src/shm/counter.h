// SPDX-License-Identifier: Apache-2.0
//
// A number in a segment that only grows: one process announces with it how far it has come, and
// others wait for that. Everything that the poster wrote before is visible to a process that sees
// the number. Posting costs a system call only while a process sleeps. A Counter is a value that
// refers to a cell of a segment, which must outlive it. Thread rule: any thread of any process.
// Proofs: docs/design/shared_memory.md
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include "base/check.h"
#include "base/clock.h"

namespace sherd::shm {

// Counters lie this far apart, because processors fetch lines of 64 bytes in pairs.
inline constexpr std::size_t kCacheLine = 128;

constexpr std::size_t round_up_to_lines(std::size_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

// Whether `memory` has that many bytes and begins a line.
inline bool has_room(std::span<const std::byte> memory, std::size_t bytes) {
  return memory.size() >= bytes &&
      reinterpret_cast<std::uintptr_t>(memory.data()) % kCacheLine == 0;
}

// Zeros are a counter at 0. A cell has its cache line to itself, so that posting one counter does
// not slow down a spin on another.
struct alignas(kCacheLine) CounterCell {
  std::uint64_t value;
  std::uint32_t sleepers;
};
static_assert(sizeof(CounterCell) == kCacheLine);

class Counter {
 public:
  explicit Counter(CounterCell& cell) : cell_(&cell) {}

  // Acquire: pairs with the store in post() and advance(). A process that reads a number sees
  // everything that was written before it was posted.
  std::uint64_t value() const {
    return std::atomic_ref(cell_->value).load(std::memory_order_acquire);
  }
  bool reached(std::uint64_t value_wanted) const {
    return value() >= value_wanted;
  }

  // Raises it to `value` and wakes sleepers. REQUIRES: `value` is not below the present one; no
  // other thread posts or advances this counter meanwhile.
  void post(std::uint64_t value);

  // Raises it by `steps` and returns the new value. Several threads may do so at once.
  std::uint64_t advance(std::uint64_t steps = 1);

  // Sleeps until somebody posts, but not once it has reached `value`, and for at most `at_most`.
  // May return early for no reason. See Waiter for a wait with a predicate.
  void sleep_below(std::uint64_t value, Duration at_most) const;

 private:
  void wake_sleepers() const;

  CounterCell* cell_;
};

}  // namespace sherd::shm
