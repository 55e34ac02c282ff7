// SPDX-License-Identifier: Apache-2.0
#include "comm/shm_backend/post.h"

#include <pthread.h>
#include <utility>
#include "base/check.h"
#include "comm/shm_backend/group.h"

namespace sherd::comm::shm {
namespace {

// How often it looks whether everybody is alive while messages are under way,
// and at all: the bell wakes it when there is something to do.
constexpr Duration kLook = std::chrono::milliseconds(5);
constexpr Duration kIdle = std::chrono::milliseconds(500);

}  // namespace

Post::Post(std::shared_ptr<Group> group)
    : group_(std::move(group)),
      mailbox_(
          group_->mailbox_memory(),
          group_->segment.peers(),
          group_->clock,
          {.single_copy = group_->stage.single_copy()}) {}

void Post::send(Parcel message, const WorkPtr& work) {
  message.done = [work](const Status& outcome, int /*source*/) {
    work->complete(exception_of(outcome));
  };
  std::unique_lock lock(mutex_);
  start();
  mailbox_.send(std::move(message));
  complete_ended(lock);
  mailbox_.ring();
}

void Post::receive(
    Parcel message, const WorkPtr& work, std::function<void()> received) {
  message.done = [work, received = std::move(received)](
                     const Status& outcome, int source) {
    work->source_ = source;
    std::exception_ptr failure = exception_of(outcome);
    if (!failure) {
      try {
        received();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    work->complete(failure);
  };
  const std::lock_guard lock(mutex_);
  start();
  mailbox_.receive(std::move(message));
  mailbox_.ring();
}

void Post::start() {
  SHERD_CHECK_AS(
      kFailedPrecondition, !stopped_,
      "[comm] expected an open group, found it shut down");
  if (!thread_.joinable()) {
    thread_ = std::thread([self = shared_from_this()] {
      ::pthread_setname_np(::pthread_self(), "sherd-shm-post");
      self->serve();
    });
  }
}

// Without the lock: callbacks may issue other messages.
void Post::complete_ended(std::unique_lock<std::mutex>& lock) {
  auto ended = mailbox_.take_ended();
  lock.unlock();
  for (auto& each : ended) {
    each.message.done(each.outcome, each.source);
  }
  ended.clear();
  lock.lock();
}

void Post::serve() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const Counter bell = mailbox_.bell();
    const std::uint64_t heard = bell.value();
    while (mailbox_.progress()) {
    }
    complete_ended(lock);
    const Duration at_most = mailbox_.idle() ? kIdle : kLook;
    lock.unlock();
    bell.sleep_below(heard + 1, at_most);
    lock.lock();
    if (!bell.reached(heard + 1) && !mailbox_.idle()) {
      mailbox_.look();
    }
  }
}

void Post::stop() {
  std::thread thread;
  {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    thread.swap(thread_);
    mailbox_.end_all(
        Status(ErrorCode::kAborted, "[comm] the group was shut down before"));
    complete_ended(lock);
    mailbox_.ring();
  }
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();  // Stopped by a callback that it runs.
  } else if (thread.joinable()) {
    thread.join();
  }
}

}  // namespace sherd::comm::shm
