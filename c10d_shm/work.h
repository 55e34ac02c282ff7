// SPDX-License-Identifier: Apache-2.0
//
// ShmWork is an asynchronous operation of the shm backend. WorkQueue runs the operations of a group
// in the order in which they were issued, on its own thread or on that of a waiting caller,
// whichever comes first (docs/design/shm_backend.md). Messages are works, too, which P2pWorker
// completes. A ShmWork keeps its tensors until it is done. Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include "base/status.h"
#include "c10d_shm/fork_mark.h"
#include "c10d_shm/newer_c10d.h"

namespace sherd::c10d_shm {

class P2pWorker;
class WorkQueue;

// What a work that ends like this throws; null if it is ok.
std::exception_ptr exception_of(const Status& status);
// Throws if the group was shut down.
void expect_open(bool stopped);
// How the operations end that were left at shutdown.
Status shut_down_before();
// Joins `thread`, or detaches it if it runs the callback that has stopped it.
void join_unless_own(std::thread thread);

struct WorkOptions {
  int rank = 0;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = "";
  std::vector<at::Tensor> inputs{};
  // The value of the future.
  std::vector<at::Tensor> outputs{};
  std::uint64_t sequence = 0;
#ifdef SHERD_C10D_HAS_COMPLETION_HOOKS
  // Called when it has succeeded. May be null.
  std::shared_ptr<CompletionHooks> completion_hooks{};
#endif
};

class ShmWork final : public c10d::Work {
 public:
  ShmWork(WorkOptions options, std::function<Status()> run);

  // Runs it, and the operations before it, if no other thread does; but not with a timeout, which
  // could not end that. A wait that times out ends nothing: the operation goes on and still uses
  // its tensors.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  // Created on request: few callers need it, and it costs as much as a small collective.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }
  int sourceRank() const override { return source_; }

  // For a work that has nothing to run and succeeds. Called once.
  void complete_now() { complete(nullptr); }

 private:
  friend class P2pWorker;
  friend class WorkQueue;
  std::exception_ptr carry_out();
  void complete(std::exception_ptr failure);
  // Passes the outcome to the future, if there is one that has none yet. Called after the work is
  // completed.
  void settle_future();

  std::function<Status()> run_;
  const std::vector<at::Tensor> outputs_;
  const std::uint64_t sequence_;
  // Guarded by Work::mutex_, and so is whether it has its outcome.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool settled_ = false;
#ifdef SHERD_C10D_HAS_COMPLETION_HOOKS
  const std::shared_ptr<CompletionHooks> completion_hooks_;
#endif
  int source_ = -1;  // Who sent the received message. Set before completion.
  std::weak_ptr<WorkQueue> queue_;  // Set before another thread sees it.
};

using WorkPtr = c10::intrusive_ptr<ShmWork>;

// A work that has nothing to run and has succeeded.
WorkPtr completed_work(WorkOptions options);

class WorkQueue : public std::enable_shared_from_this<WorkQueue> {
 public:
  // `abort` makes the operation under way end soon.
  explicit WorkQueue(std::function<void()> abort);
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Appends it. With `at_once`, returns when it is done. A callback of a work's future that issues
  // one always gets it done at once, before those that wait in line: the callback may wait for its
  // future, and keeps the thread from doing anything else.
  void issue(const WorkPtr& work, bool at_once);

  // Carries operations out until `work` is done. Throws in a forked child.
  void run_until_done(ShmWork& work);

  // In a forked child only this and the destructor may be called.
  const ForkMark& process() const { return process_; }

  // Ends operations that are under way or in the queue, with an error, and returns when they have
  // ended: no tensor is read or written afterwards. Joins the thread. Later operations fail.
  // REQUIRES: called before the last reference is released.
  void stop();

 private:
  void serve();
  // Carries out what it can until `done`, which is called with mutex_ held. Meanwhile the thread
  // sleeps on `wakes`.
  void work_until(
      const std::function<bool()>& done, std::condition_variable& wakes);
  // Removes the first one, unless one is being carried out or there is none.
  WorkPtr take();
  // Carries out `work`, with `lock` released meanwhile.
  void carry_out(std::unique_lock<std::mutex>& lock, const WorkPtr& work);

  const std::function<void()> abort_;
  const ForkMark process_;
  // Guards what follows; docs/design/shm_backend.md proves that no wake is lost. Waiting callers
  // sleep on changed_, and are notified of everything. The queue's own thread sleeps on left_over_:
  // it is notified only when something can be taken out that no caller is about to take, and when
  // the queue stops.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable left_over_;
  std::deque<WorkPtr> queue_;
  std::thread::id runner_{};  // The thread that carries one out, if any.
  // The threads that complete a work and may run callbacks, once for each work.
  std::vector<std::thread::id> in_callbacks_;
  bool stopped_ = false;
  // Started with the first operation that nobody waits for; it keeps a reference.
  std::thread thread_;
};

}  // namespace sherd::c10d_shm
