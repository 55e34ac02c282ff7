// SPDX-License-Identifier: Apache-2.0
#include "bench/step_barrier.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <sherd/base/error.h>
#include "base/descriptor.h"

namespace sherd::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kDeadline = std::chrono::minutes(1);
constexpr auto kSpin = std::chrono::milliseconds(5);

// std::atomic's own wait() does not work across processes. No wake-up is lost: an arriving rank
// adds to the word and then wakes the others, and the kernel lets no thread sleep for which the
// word has changed since it was read.
void sleep_while(std::atomic<unsigned>& word, unsigned value) {
  const timespec one_second = {1, 0};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &one_second, nullptr, 0);
}

void wake_all(std::atomic<unsigned>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

struct StepBarrier::Page {
  // Zero, like the file. A lock-free atomic works across processes.
  std::atomic<unsigned> arrivals;
};
static_assert(std::atomic<unsigned>::is_always_lock_free);

StepBarrier::StepBarrier(const std::string& path, int ranks)
    : ranks_(static_cast<unsigned>(ranks)) {
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  void* page = file.open()
      ? ::mmap(
            nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0)
      : MAP_FAILED;
  if (page == MAP_FAILED) {
    throw Error(
        "[bench] cannot map the barrier " + path + ": " + std::strerror(errno),
        ErrorCode::kUnavailable);
  }
  page_ = static_cast<Page*>(page);
}

StepBarrier::~StepBarrier() { ::munmap(page_, kBytes); }

void StepBarrier::wait() {
  ++waits_;
  auto& arrivals = page_->arrivals;
  arrivals.fetch_add(1, std::memory_order_acq_rel);
  wake_all(arrivals);
  const auto begin = Clock::now();
  while (true) {
    // Pairs with the addition above on the other ranks.
    const unsigned arrived = arrivals.load(std::memory_order_acquire);
    // The unsigned distance is right even after the count has wrapped around.
    if (static_cast<int>(waits_ * ranks_ - arrived) <= 0) {
      return;
    }
    const auto waited = Clock::now() - begin;
    if (waited > kDeadline) {
      throw Error(
          "[bench] expected every copy of the bound at the barrier within a "
          "minute, found one missing",
          ErrorCode::kDeadlineExceeded);
    }
    if (waited < kSpin) {
      ::sched_yield();
    } else {
      sleep_while(arrivals, arrived);
    }
  }
}

}  // namespace sherd::bench
