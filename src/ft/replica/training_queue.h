// SPDX-License-Identifier: Apache-2.0
//
// TrainingQueue holds, in order, the tasks that an agent gives to the program's training thread.
// Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include "base/interrupt.h"
#include "ft/replica/rank_messages.h"

namespace sherd::ft {

// Installs a sum or a whole state, as fetched from another replica.
struct InstallFetchedTask {
  std::uint64_t serial = 0;      // That of the InstallTask.
  std::optional<Commit> commit;  // Of a sum; nullopt for a whole state.
  StateId state;                 // What the rank holds after the installation.
  std::shared_ptr<const std::string> bytes;
};

// An Attempt says that its sum is complete here, but not decided yet.
using TrainingTask = std::variant<
    ComputeTask,
    Attempt,
    ApplyTask,
    SnapshotTask,
    InstallFetchedTask,
    StopTask>;

class TrainingQueue {
 public:
  void push(TrainingTask task) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
    came_.notify_one();
  }

  // Returns the first task, which stays in the queue. Waits without a deadline: if another process
  // dies, a task arrives, and the coordinator notices a rank that hangs. Throws Error with kAborted
  // if the program is interrupted.
  TrainingTask front() {
    InterruptibleWait interrupts;
    std::unique_lock lock(mutex_);
    while (queue_.empty()) {
      if (!InterruptibleWait::possible()) {
        came_.wait(lock);
        continue;
      }
      came_.wait_for(lock, InterruptibleWait::kPeriod);
      // A handler of a signal may ask the replica to leave, which ends in push().
      lock.unlock();
      interrupts.poll().throw_if_failed();
      lock.lock();
    }
    return queue_.front();
  }

  void pop() {
    const std::lock_guard lock(mutex_);
    queue_.pop_front();
  }

 private:
  // mutex_ guards queue_; push() notifies the training thread, the only one that waits. Whatever
  // ends a rank pushes a StopTask, which also ends the last wait.
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<TrainingTask> queue_;
};

}  // namespace sherd::ft
