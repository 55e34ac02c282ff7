// SPDX-License-Identifier: Apache-2.0
#include "ft/agent/worker.h"

#include <pthread.h>
#include <utility>

namespace sherd::ft {

Worker::Worker()
    : thread_([this](const std::stop_token& stop) { run(stop); }) {}

Worker::~Worker() = default;

void Worker::post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  works_.push_back(std::move(work));
  came_.notify_one();
}

void Worker::run(const std::stop_token& stop) {
  ::pthread_setname_np(::pthread_self(), "sherd-digests");
  for (;;) {
    std::unique_lock lock(mutex_);
    // Without a deadline: its end is a stop, which wakes it.
    if (!came_.wait(lock, stop, [this] { return !works_.empty(); }) ||
        stop.stop_requested()) {
      return;
    }
    const auto work = std::move(works_.front());
    works_.pop_front();
    lock.unlock();
    work();
  }
}

}  // namespace sherd::ft
