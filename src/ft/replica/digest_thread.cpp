// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/digest_thread.h"

#include <pthread.h>
#include <utility>

namespace sherd::ft {

DigestThread::DigestThread()
    : thread_([this](const std::stop_token& stop) { run(stop); }) {}

DigestThread::~DigestThread() = default;

void DigestThread::post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(work));
  came_.notify_one();
}

void DigestThread::run(const std::stop_token& stop) {
  ::pthread_setname_np(::pthread_self(), "sherd-digests");
  for (;;) {
    std::unique_lock lock(mutex_);
    // Without a deadline: its end is a stop, which wakes it.
    if (!came_.wait(lock, stop, [this] { return !jobs_.empty(); }) ||
        stop.stop_requested()) {
      return;
    }
    const auto work = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    work();
  }
}

}  // namespace sherd::ft
