// SPDX-License-Identifier: Apache-2.0
#include "bench/step_barrier.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sherd/base/error.h>

namespace sherd::tools::bench {
namespace {

constexpr auto kDeadline = std::chrono::minutes(1);
constexpr int kYieldsPerLook = 1000;

}  // namespace

struct StepBarrier::Page {
  // Zero, as the file. One atomic over processes is lock-free.
  std::atomic<unsigned> arrivals;
};
static_assert(std::atomic<unsigned>::is_always_lock_free);

StepBarrier::StepBarrier(const std::string& path, int ranks)
    : ranks_(static_cast<unsigned>(ranks)) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* page = fd < 0
      ? MAP_FAILED
      : ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  if (page == MAP_FAILED) {
    throw Error(
        "[bench] cannot map the barrier " + path + ": " + std::strerror(error),
        ErrorCode::kUnavailable);
  }
  page_ = static_cast<Page*>(page);
}

StepBarrier::~StepBarrier() { ::munmap(page_, kBytes); }

void StepBarrier::wait() {
  ++waits_;
  page_->arrivals.fetch_add(1, std::memory_order_acq_rel);
  const auto until = std::chrono::steady_clock::now() + kDeadline;
  // Unsigned distance: right also when the count has wrapped around. Pairs with
  // the addition above on the other ranks.
  const auto missing = [&] {
    return static_cast<int>(
        waits_ * ranks_ - page_->arrivals.load(std::memory_order_acquire));
  };
  for (int yields = 1; missing() > 0; ++yields) {
    ::sched_yield();
    if (yields % kYieldsPerLook == 0 &&
        std::chrono::steady_clock::now() > until) {
      throw Error(
          "[bench] expected every copy of the bound at the barrier within a "
          "minute, found one missing",
          ErrorCode::kDeadlineExceeded);
    }
  }
}

}  // namespace sherd::tools::bench
