// SPDX-License-Identifier: Apache-2.0
#include "base/worker_thread.h"

#include <pthread.h>
#include <exception>
#include <utility>
#include "base/interrupt.h"

namespace sherd {
namespace {

Status result_of(const WorkerThread::Job& job) {
  try {
    return job();
  } catch (...) {
    return {ErrorCode::kUnavailable, reason_of(std::current_exception())};
  }
}

}  // namespace

WorkerThread::WorkerThread(std::string thread_name)
    : thread_(
          [this, name = std::move(thread_name)](const std::stop_token& stop) {
            ::pthread_setname_np(::pthread_self(), name.c_str());
            run(stop);
          }) {}

WorkerThread::~WorkerThread() { thread_.request_stop(); }

std::uint64_t WorkerThread::post(Job job) {
  const std::lock_guard lock(mu_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return ++posted_;
}

Status WorkerThread::wait(std::uint64_t number) {
  const auto ended = [&] { return ended_ >= number; };
  InterruptibleWait interrupts;
  Status interrupted;
  std::unique_lock lock(mu_);
  while (InterruptibleWait::possible() &&
         !changed_.wait_for(lock, InterruptibleWait::kPeriod, ended)) {
    lock.unlock();
    // The interrupt ends what the job waits for, and so the job, unless it was about to end anyway.
    if (auto status = interrupts.poll(); interrupted.ok()) {
      interrupted = std::move(status);
    }
    lock.lock();
  }
  changed_.wait(lock, ended);
  return failure_.ok() ? interrupted : failure_;
}

void WorkerThread::settle() {
  std::unique_lock lock(mu_);
  const auto last = posted_;
  changed_.wait(lock, [&] { return ended_ >= last; });
}

bool WorkerThread::wait_for(
    std::uint64_t number, std::chrono::milliseconds time) {
  std::unique_lock lock(mu_);
  return changed_.wait_for(lock, time, [&] { return ended_ >= number; });
}

std::uint64_t WorkerThread::ended() const {
  const std::lock_guard lock(mu_);
  return ended_;
}

Status WorkerThread::failure() const {
  const std::lock_guard lock(mu_);
  return failure_;
}

bool WorkerThread::busy() const {
  const std::lock_guard lock(mu_);
  return ended_ < posted_;
}

void WorkerThread::run(const std::stop_token& stop) {
  std::unique_lock lock(mu_);
  while (changed_.wait(lock, stop, [&] { return !jobs_.empty(); })) {
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    Status status = failure_;
    if (status.ok() && !stop.stop_requested()) {
      lock.unlock();
      status = result_of(job);
      lock.lock();
    }
    if (failure_.ok()) {
      failure_ = status;
    }
    ++ended_;
    changed_.notify_all();
  }
}

}  // namespace sherd
