// SPDX-License-Identifier: Apache-2.0
//
// ShmWork is an asynchronous operation of the shm backend. WorkQueue runs the operations of a
// group one after another, in the order in which they were issued: on its own thread, or on that
// of a caller that waits, whichever is there first, so that an operation that is waited for at
// once costs no switch of threads. Messages are works, too, which P2pWorker completes. A ShmWork
// keeps its tensors until it is done. Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include "base/status.h"

namespace sherd::c10d_shm {

class P2pWorker;
class WorkQueue;

// What a work that ends so throws; null when it is ok.
std::exception_ptr exception_of(const Status& status);
// Throws when the group was shut down.
void expect_open(bool stopped);
// How the operations end that were left then.
Status shut_down_before();
// Joins `thread`, or detaches it where it runs the callback that has stopped it.
void join_unless_own(std::thread thread);

struct WorkOptions {
  int rank = 0;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = "";
  std::vector<at::Tensor> inputs{};
  // What the future brings.
  std::vector<at::Tensor> outputs{};
  std::uint64_t sequence = 0;
};

class ShmWork final : public c10d::Work {
 public:
  ShmWork(WorkOptions options, std::function<Status()> run);

  // Runs it, and what is before it, when nobody else does; not when there is a
  // timeout, which could not end that. A wait that times out ends nothing: the
  // operation goes on, and its tensors stay lent to it.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }
  std::uint64_t getSequencenumber() const override { return sequence_; }
  int sourceRank() const override { return source_; }

 private:
  friend class P2pWorker;
  friend class WorkQueue;
  std::exception_ptr carry_out();
  void complete(std::exception_ptr failure);

  std::function<Status()> run_;
  const std::vector<at::Tensor> outputs_;
  const std::uint64_t sequence_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  int source_ = -1;  // Who sent what was received. Set before it is completed.
  std::weak_ptr<WorkQueue> queue_;  // Set before anybody else sees it.
};

using WorkPtr = c10::intrusive_ptr<ShmWork>;

class WorkQueue : public std::enable_shared_from_this<WorkQueue> {
 public:
  // `abort` makes the operation under way end soon.
  explicit WorkQueue(std::function<void()> abort);
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Appends it. `at_once`: returns when it is done.
  void issue(const WorkPtr& work, bool at_once);

  // Carries operations out until `work` is done.
  void run_until_done(ShmWork& work);

  // Ends what is under way or waits in the queue, with an error, and returns when it
  // has ended: no tensor is read or written afterwards. Joins the thread. Later
  // operations fail. REQUIRES: called before the last reference goes.
  void stop();

 private:
  void serve();
  // `done` is asked with mutex_ held.
  void work_until(const std::function<bool()>& done);
  // Takes the first one out, unless one is being carried out or there is none.
  WorkPtr take();
  // Carries `work` out, with `lock` released meanwhile.
  void carry_out(std::unique_lock<std::mutex>& lock, const WorkPtr& work);

  const std::function<void()> abort_;
  // Guards what follows. A thread sleeps on changed_ only after it has found,
  // with mutex_ held, that what it waits for has not come and that it can take
  // nothing out. Whoever changes either (the queue, runner_, stopped_, or that a
  // work is completed) locks mutex_ afterwards and then notifies all, so the
  // sleeper has either seen the change or is woken by it.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<WorkPtr> queue_;
  std::thread::id runner_{};  // Who carries one out; none: nobody does.
  bool stopped_ = false;
  // Started with the first one that nobody waits for; keeps a reference.
  std::thread thread_;
};

}  // namespace sherd::c10d_shm
