// SPDX-License-Identifier: Apache-2.0
//
// No wake-up is lost, as docs/design/shared_memory.md proves from the one order of four sequentially
// consistent accesses: P is the poster's write of `value`, Q its read of `sleepers`; S is the
// sleeper's write of `sleepers`, T its read of `value`.
#include "shm/counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <climits>
#include <ctime>

namespace sherd::shm {
namespace {

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic_ref<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic_ref<std::uint64_t>::required_alignment <= kCacheLine);
// A futex has 32 bits: the half of the value that changes. A sleeper would miss only a post of
// exactly a multiple of 2^32 between its read and the kernel's, and its sleep ends by itself.
static_assert(
    std::endian::native == std::endian::little,
    "the low half of the value is the futex word");

const std::uint32_t* low_half(const std::uint64_t& value) {
  return reinterpret_cast<const std::uint32_t*>(&value);
}

// Uses shared futexes: several processes may map the word, at any address. Sleeps until
// futex_wake_all() of the same word, but not if *word differs from `expected`, and for at most
// `at_most`. May return early for no reason.
void futex_wait(
    const std::uint32_t* word, std::uint32_t expected, Duration at_most) {
  if (at_most <= Duration::zero()) {
    return;
  }
  constexpr std::int64_t kSecond = 1'000'000'000;
  timespec rest = {};
  rest.tv_sec = static_cast<std::time_t>(at_most.count() / kSecond);
  rest.tv_nsec = static_cast<long>(at_most.count() % kSecond);
  // Every outcome means the same to the caller: look again.
  ::syscall(SYS_futex, word, FUTEX_WAIT, expected, &rest, nullptr, 0);
}

void futex_wake_all(const std::uint32_t* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

void Counter::post(std::uint64_t value) {
  const std::atomic_ref<std::uint64_t> number(cell_->value);
  // Relaxed: only this thread writes it.
  SHERD_ASSERT(
      value >= number.load(std::memory_order_relaxed), "counters only grow");
  number.store(value, std::memory_order_seq_cst);  // P above.
  wake_sleepers();
}

std::uint64_t Counter::advance(std::uint64_t steps) {
  const std::atomic_ref<std::uint64_t> number(cell_->value);
  const std::uint64_t before =
      number.fetch_add(steps, std::memory_order_seq_cst);  // P above.
  wake_sleepers();
  return before + steps;
}

void Counter::wake_sleepers() const {
  const std::atomic_ref<std::uint32_t> sleepers(cell_->sleepers);
  if (sleepers.load(std::memory_order_seq_cst) != 0) {  // Q above.
    futex_wake_all(low_half(cell_->value));
  }
}

void Counter::sleep_below(std::uint64_t value, Duration at_most) const {
  const std::atomic_ref<std::uint32_t> sleepers(cell_->sleepers);
  // A process killed below leaves its mark in `sleepers`: posts then make an unnecessary system
  // call, and nothing worse.
  sleepers.fetch_add(1, std::memory_order_seq_cst);  // S above.
  const std::uint64_t seen =
      std::atomic_ref(cell_->value).load(std::memory_order_seq_cst);  // T.
  if (seen < value) {
    futex_wait(
        low_half(cell_->value), static_cast<std::uint32_t>(seen), at_most);
  }
  // Relaxed: a poster that reads the mark too late makes an unnecessary wake-up.
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace sherd::shm
