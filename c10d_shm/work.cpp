// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/work.h"

#include <pthread.h>
#include <algorithm>
#include <utility>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include "base/check.h"

namespace sherd::c10d_shm {

std::exception_ptr exception_of(const Status& status) {
  return status.ok()
      ? nullptr
      : std::make_exception_ptr(Error(status.message(), status.code()));
}

void expect_open(bool stopped) {
  SHERD_CHECK_AS(
      kFailedPrecondition, !stopped,
      "[c10d_shm] expected an open group, found it shut down");
}

Status shut_down_before() {
  return {ErrorCode::kAborted, "[c10d_shm] the group was shut down before"};
}

void join_unless_own(std::thread thread) {
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else if (thread.joinable()) {
    thread.join();
  }
}

ShmWork::ShmWork(WorkOptions options, std::function<Status()> run)
    : Work(
          options.rank,
          options.type,
          options.title,
          std::optional<std::vector<at::Tensor>>(std::move(options.inputs))),
      run_(std::move(run)),
      outputs_(std::move(options.outputs)),
      sequence_(options.sequence)
#ifdef SHERD_C10D_HAS_COMPLETION_HOOKS
      ,
      completion_hooks_(std::move(options.completion_hooks))
#endif
{
}

bool ShmWork::wait(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout) {
    if (const auto queue = queue_.lock()) {
      queue->run_until_done(*this);
    }
  }
  return Work::wait(timeout);
}

std::exception_ptr ShmWork::carry_out() {
  try {
    return exception_of(run_());
  } catch (...) {
    return std::current_exception();
  }
}

void ShmWork::complete(std::exception_ptr failure) {
  run_ = nullptr;  // Releases tensors that only it kept alive.
#ifdef SHERD_C10D_HAS_COMPLETION_HOOKS
  // Runs before a waiting thread continues. Nobody can receive what a hook throws.
  if (failure == nullptr && completion_hooks_ != nullptr) {
    completion_hooks_->run(
        {.completionKey = getCompletionKey(), .duration_ms = std::nullopt});
  }
#endif
  finish(std::move(failure));
  settle_future();
}

// The work is completed and the future created under one lock, so the one that comes second finds
// both, and completes the future.
c10::intrusive_ptr<c10::ivalue::Future> ShmWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool completed = false;
  {
    const std::lock_guard lock(mutex_);
    if (future_ == nullptr) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()));
    }
    future = future_;
    completed = completed_;
  }
  if (completed) {
    settle_future();
  }
  return future;
}

void ShmWork::settle_future() {
  {
    const std::lock_guard lock(mutex_);
    if (future_ == nullptr || settled_) {
      return;
    }
    settled_ = true;
  }
  // Callbacks run here, and may call anything.
  if (exception_) {
    future_->setError(exception_);
  } else {
    future_->markCompleted(c10::IValue(outputs_));
  }
}

WorkPtr completed_work(WorkOptions options) {
  auto work = c10::make_intrusive<ShmWork>(std::move(options), nullptr);
  work->complete_now();
  return work;
}

WorkQueue::WorkQueue(std::function<void()> abort) : abort_(std::move(abort)) {}

void WorkQueue::issue(const WorkPtr& work, bool at_once) {
  work->queue_ = weak_from_this();
  {
    const std::lock_guard lock(mutex_);
    expect_open(stopped_);
    if (std::ranges::count(in_callbacks_, std::this_thread::get_id()) > 0) {
      queue_.push_front(work);
      at_once = true;
    } else {
      queue_.push_back(work);
    }
    if (!at_once && !thread_.joinable()) {
      thread_ = std::thread([self = shared_from_this()] {
        ::pthread_setname_np(::pthread_self(), "sherd-shm");
        self->serve();
      });
    }
    if (!at_once && runner_ == std::thread::id()) {
      left_over_.notify_one();
    }
    if (!at_once) {
      changed_.notify_all();
    }
  }
  if (at_once) {
    run_until_done(*work);
  }
}

WorkPtr WorkQueue::take() {
  if (runner_ != std::thread::id() || queue_.empty()) {
    return nullptr;
  }
  runner_ = std::this_thread::get_id();
  WorkPtr first = std::move(queue_.front());
  queue_.pop_front();
  return first;
}

// Completed only after waiting threads may go on, since callbacks of the future may wait for what
// they do: hence two changes and two notifications. The queue's own thread takes nothing meanwhile,
// so where callers wait for futures only, as DistributedDataParallel does, what a callback issues
// comes before what waits in line, on every rank.
void WorkQueue::carry_out(
    std::unique_lock<std::mutex>& lock, const WorkPtr& work) {
  lock.unlock();
  const std::exception_ptr failure = work->carry_out();
  lock.lock();
  runner_ = std::thread::id();
  if (!queue_.empty()) {
    left_over_.notify_one();
  }
  changed_.notify_all();
  const std::thread::id own = std::this_thread::get_id();
  in_callbacks_.push_back(own);
  lock.unlock();
  work->complete(failure);
  lock.lock();
  in_callbacks_.erase(std::ranges::find(in_callbacks_, own));
  changed_.notify_all();
}

void WorkQueue::run_until_done(ShmWork& work) {
  process_.expect_not_forked();
  work_until([&] { return work.isCompleted(); }, changed_);
}

void WorkQueue::serve() {
  work_until([&] { return stopped_; }, left_over_);
}

void WorkQueue::work_until(
    const std::function<bool()>& done, std::condition_variable& wakes) {
  std::unique_lock lock(mutex_);
  while (!done()) {
    if (const WorkPtr first = take()) {
      carry_out(lock, first);
    } else {
      wakes.wait(lock);
    }
  }
}

void WorkQueue::stop() {
  std::deque<WorkPtr> left;
  std::thread thread;
  {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    left.swap(queue_);
    thread.swap(thread_);
    left_over_.notify_all();
    changed_.notify_all();
    if (runner_ != std::thread::id()) {
      abort_();
      // Waits unless a callback within the operation stops the queue that it belongs to.
      changed_.wait(lock, [&] {
        return runner_ == std::thread::id() ||
            runner_ == std::this_thread::get_id();
      });
    }
  }
  for (const WorkPtr& work : left) {
    work->complete(exception_of(shut_down_before()));
  }
  {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();  // Tells threads that wait for the remaining works.
  }
  join_unless_own(std::move(thread));
}

}  // namespace sherd::c10d_shm
