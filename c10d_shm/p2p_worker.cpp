// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/p2p_worker.h"

#include <pthread.h>
#include <utility>
#include "c10d_shm/shm_group.h"

namespace sherd::c10d_shm {
namespace {

// How often it checks the peers while messages are under way, however many others come and go, and
// how long it sleeps otherwise. The doorbell wakes it when there is something to do.
constexpr Duration kLook = std::chrono::milliseconds(5);
constexpr Duration kIdle = std::chrono::milliseconds(500);
// A peer that has sent or received a message takes what lies in its ring long before that. One that
// has not takes nothing, and the sends that do not fit fail.
constexpr Duration kFlush = std::chrono::seconds(2);

}  // namespace

P2pWorker::P2pWorker(
    std::shared_ptr<ShmGroup> group, std::function<void()> aborted)
    : group_(std::move(group)),
      aborted_(std::move(aborted)),
      channel_(
          group_->p2p_memory(),
          group_->segment.peers(),
          group_->clock,
          group_->communicator.single_copy()) {}

// A message may also fail by itself, if it does not fit its receiver.
void P2pWorker::complete(const WorkPtr& work, const Status& outcome) {
  if (!outcome.ok() && !group_->segment.peers().check().ok()) {
    aborted_();
  }
  work->complete(exception_of(outcome));
}

void P2pWorker::send(P2pMessage message, const WorkPtr& work) {
  message.done = [this, work](const Status& outcome, int /*source*/) {
    complete(work, outcome);
  };
  std::unique_lock lock(mutex_);
  start();
  channel_.send(std::move(message));
  complete_ended(lock);
  channel_.ring_doorbell();
}

void P2pWorker::receive(
    P2pMessage message, const WorkPtr& work, std::function<void()> received) {
  message.done = [this, work, received = std::move(received)](
                     const Status& outcome, int source) {
    work->source_ = source;
    if (!outcome.ok()) {
      complete(work, outcome);
      return;
    }
    std::exception_ptr failure;
    try {
      received();
    } catch (...) {
      failure = std::current_exception();
    }
    work->complete(failure);
  };
  const std::lock_guard lock(mutex_);
  start();
  channel_.receive(std::move(message));
  channel_.ring_doorbell();
}

void P2pWorker::start() {
  expect_open(stopped_);
  if (!thread_.joinable()) {
    thread_ = std::thread([self = shared_from_this()] {
      ::pthread_setname_np(::pthread_self(), "sherd-shm-post");
      self->serve();
    });
  }
}

// Runs without the lock: callbacks may issue other messages.
void P2pWorker::complete_ended(std::unique_lock<std::mutex>& lock) {
  auto ended = channel_.take_ended();
  lock.unlock();
  for (auto& each : ended) {
    each.message.done(each.outcome, each.source);
  }
  ended.clear();
  lock.lock();
}

void P2pWorker::serve() {
  std::unique_lock lock(mutex_);
  Instant last_check = group_->clock.now();
  while (!stopped_) {
    const shm::Counter doorbell = channel_.doorbell();
    const std::uint64_t rung = doorbell.value();
    while (channel_.progress()) {
    }
    complete_ended(lock);
    const Duration at_most = channel_.idle() ? kIdle : kLook;
    lock.unlock();
    doorbell.sleep_below(rung + 1, at_most);
    lock.lock();
    const Instant now = group_->clock.now();
    if (now - last_check >= kLook && !channel_.idle()) {
      channel_.check_peers();
      last_check = now;
    }
  }
}

void P2pWorker::flush() {
  std::unique_lock lock(mutex_);
  const shm::Counter doorbell = channel_.doorbell();
  const Instant until = group_->clock.now() + kFlush;
  while (!stopped_ && thread_.joinable() &&
         group_->segment.peers().check().ok() && group_->clock.now() < until) {
    const std::uint64_t rung = doorbell.value();
    while (channel_.progress()) {
    }
    complete_ended(lock);
    if (channel_.has_posted_all()) {
      return;
    }
    lock.unlock();
    doorbell.sleep_below(rung + 1, kLook);
    lock.lock();
  }
}

void P2pWorker::stop() {
  std::thread thread;
  {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    thread.swap(thread_);
    channel_.end_all(shut_down_before());
    complete_ended(lock);
    channel_.ring_doorbell();
  }
  join_unless_own(std::move(thread));
}

}  // namespace sherd::c10d_shm
