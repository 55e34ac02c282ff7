// SPDX-License-Identifier: Apache-2.0
#include "shm/waiter.h"

#include <algorithm>
#include "base/check.h"
#include "base/interrupt.h"

namespace sherd::shm {
namespace {

// A sleeper checks the other processes this often, since nothing wakes it when one ends.
constexpr Duration kSlice = std::chrono::milliseconds(5);
// How often a counter is read between two readings of the clock.
constexpr int kSpinsPerClock = 64;

// Tells the core that this is a spin loop, which saves power and a mispredicted exit.
void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Status Waiter::wait(
    Counter counter, std::uint64_t value, const WaitTarget& awaited) const {
  SHERD_ASSERT(awaited.rank != peers_->rank(), "nobody waits for itself");
  if (counter.reached(value) || spin(counter, value)) {
    return {};
  }
  peers_->set_awaited(awaited.rank);
  Status outcome = wait_asleep(counter, value, awaited);
  peers_->set_awaited(std::nullopt);
  return outcome;
}

bool Waiter::spin(Counter counter, std::uint64_t value) const {
  if (options_.spin <= Duration::zero()) {
    return false;
  }
  const Instant until = clock_->now() + options_.spin;
  do {
    for (int i = 0; i < kSpinsPerClock; ++i) {
      if (counter.reached(value)) {
        return true;
      }
      relax();
    }
  } while (clock_->now() < until);
  return false;
}

Status Waiter::wait_asleep(
    Counter counter, std::uint64_t value, const WaitTarget& awaited) const {
  std::uint64_t seen = counter.value();
  Instant limit = clock_->now() + options_.deadline;
  InterruptibleWait interrupts;
  for (;;) {
    counter.sleep_below(value, std::min(kSlice, limit - clock_->now()));
    if (awaited.meanwhile != nullptr) {
      (*awaited.meanwhile)();
    }
    // Checks the others before the counter: if a rank has posted and then died or left, its post is
    // seen, too, and counts. The trouble is read last: a rank that leaves because of it has recorded
    // it before.
    const bool left = peers_->has_left(awaited.rank);
    Status trouble = peers_->check();
    const std::uint64_t found = counter.value();
    const bool in_vain = awaited.cancel_counter &&
        awaited.cancel_counter->reached(awaited.cancel_value);
    if (found >= value || in_vain) {
      return {};
    }
    if (!trouble.ok()) {
      return describe(trouble, found, value, awaited);
    }
    if (left) {
      return describe(peers_->departure(awaited.rank), found, value, awaited);
    }
    if (Status interrupted = interrupts.poll(); !interrupted.ok()) {
      return describe(interrupted, found, value, awaited);
    }
    const Instant now = clock_->now();
    if (found != seen) {
      seen = found;
      limit = now + options_.deadline;
    } else if (now >= limit) {
      return describe(peers_->blame(awaited.rank), found, value, awaited);
    }
  }
}

Status Waiter::describe(
    const Status& trouble,
    std::uint64_t found,
    std::uint64_t value,
    const WaitTarget& awaited) const {
  const std::string number =
      awaited.number < 0 ? std::string() : str(" ", awaited.number);
  const char* const limit = trouble.code() == ErrorCode::kDeadlineExceeded
      ? " (timed out after "
      : " (timeout ";
  return {
      trouble.code(),
      str(trouble.message(), "; awaited ", awaited.what, number, " of ",
          peers_->name(awaited.rank), ", expected ", value, ", found ", found,
          limit, seconds(options_.deadline), " s)")};
}

}  // namespace sherd::shm
