// SPDX-License-Identifier: Apache-2.0
//
// LeaveSignalWatcher lets a replica leave when a signal asks for it, also while it waits
// for others: for a step that the coordinator does not decide, for more replicas.
// Thread rule: one thread, beside its own.
#pragma once

#include <atomic>
#include <chrono>
#include <stop_token>
#include <thread>
#include <sherd/ft/replica_session.h>
#include "train/run_checkpoints.h"

namespace sherd::tools {

class LeaveSignalWatcher {
 public:
  // REQUIRES: install_signal_handlers() was called; the session outlives this.
  explicit LeaveSignalWatcher(ft::ReplicaSession& session)
      : thread_([this, &session](const std::stop_token& stop) {
          while (!stop.stop_requested() && !asked_) {
            std::this_thread::sleep_for(kPollInterval);
            if (take_signal_request() > 0) {
              asked_ = true;
              session.leave();
            }
          }
        }) {}

  bool asked() const { return asked_; }

 private:
  static constexpr std::chrono::milliseconds kPollInterval{50};
  std::atomic<bool> asked_{false};
  std::jthread thread_;
};

}  // namespace sherd::tools
