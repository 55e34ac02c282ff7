// SPDX-License-Identifier: Apache-2.0
#include "bench/step_gate.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <sherd/base/error.h>
#include "base/descriptor.h"

namespace sherd::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBytes = 4096;
// Only the first step after a pause waits, and it is not timed.
constexpr auto kPollInterval = std::chrono::milliseconds(1);
constexpr auto kTimeout = std::chrono::minutes(10);

}  // namespace

StepGate::StepGate(const std::string& path) {
  const Descriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  void* page = file.open() && ::ftruncate(file.get(), kBytes) == 0
      ? ::mmap(
            nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0)
      : MAP_FAILED;
  if (page == MAP_FAILED) {
    throw Error(
        "[bench] cannot map " + path + ": " + std::strerror(errno),
        ErrorCode::kUnavailable);
  }
  page_ = static_cast<std::int64_t*>(page);
}

StepGate::~StepGate() { ::munmap(page_, kBytes); }

void StepGate::open_until(std::int64_t step) {
  // Relaxed: only the number itself is read, and nothing else is published.
  std::atomic_ref<std::int64_t>(*page_).store(step, std::memory_order_relaxed);
}

void StepGate::wait_for(std::int64_t step) const {
  const auto deadline = Clock::now() + kTimeout;
  const std::atomic_ref<std::int64_t> open(*page_);
  while (open.load(std::memory_order_relaxed) < step) {
    if (Clock::now() > deadline) {
      throw Error(
          "[bench] expected step " + std::to_string(step) +
              " to be allowed within ten minutes",
          ErrorCode::kDeadlineExceeded);
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace sherd::bench
