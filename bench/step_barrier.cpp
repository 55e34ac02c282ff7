// SPDX-License-Identifier: Apache-2.0
#include "bench/step_barrier.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sherd/base/error.h>
#include "base/descriptor.h"

namespace sherd::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kDeadline = std::chrono::minutes(1);
constexpr auto kSpin = std::chrono::milliseconds(5);

}  // namespace

StepBarrier::StepBarrier(const std::string& path, int ranks) : ranks_(ranks) {
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
  arrivals_ = static_cast<shm::CounterCell*>(page);
}

StepBarrier::~StepBarrier() { ::munmap(arrivals_, kBytes); }

void StepBarrier::wait() {
  shm::Counter arrivals(*arrivals_);
  const auto all = ++waits_ * static_cast<std::uint64_t>(ranks_);
  arrivals.advance();
  const auto begin = Clock::now();
  while (!arrivals.reached(all)) {
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
      arrivals.sleep_below(all, std::chrono::seconds(1));
    }
  }
}

}  // namespace sherd::bench
