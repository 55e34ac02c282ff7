// SPDX-License-Identifier: Apache-2.0
//
// TrainingQueue is the queue between the agent and the thread that trains: what that one
// has to do, in order. Thread rule: any.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include "ft/replica/commands.h"

namespace sherd::ft {

// Fetched from another replica: a sum, or a state as a whole.
struct FetchedState {
  bool is_sum = false;
  Commit commit;  // Of the sum.
  StateId state;  // That installing it makes.
  std::shared_ptr<const std::string> bytes;
};

struct InstallFetchedTask {
  std::uint64_t serial = 0;
  FetchedState fetched;
};

using TrainingTask = std::variant<
    ComputeCommand,
    ApplyCommand,
    SnapshotCommand,
    InstallFetchedTask,
    StopCommand>;

class TrainingQueue {
 public:
  void push(TrainingTask task) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
    came_.notify_one();
  }

  // The first, which stays. Waits without a deadline: somebody else's death ends
  // it with an order, and the coordinator notices who hangs.
  TrainingTask front() {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [this] { return !queue_.empty(); });
    return queue_.front();
  }

  void pop() {
    const std::lock_guard lock(mutex_);
    queue_.pop_front();
  }

 private:
  // push() adds to queue_ and notifies with mutex_ held, under which the one
  // thread that waits, the one that trains, looks whether there is any. Whatever
  // ends a rank pushes a StopCommand, so the last wait ends, too.
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<TrainingTask> queue_;
};

}  // namespace sherd::ft
