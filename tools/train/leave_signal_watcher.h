// SPDX-License-Identifier: Apache-2.0
//
// LeaveSignalWatcher lets a replica leave when a signal asks for it, even while it waits: for a
// step that the coordinator does not decide, or for more replicas. Thread rule: one thread, in
// addition to its own.
#pragma once

#include <atomic>
#include <chrono>
#include <stop_token>
#include <thread>
#include <sherd/ft/replica_session.h>
#include "train/signal_request.h"

namespace sherd::tools {

class LeaveSignalWatcher {
 public:
  // REQUIRES: install_signal_handlers() was called; the session outlives this object.
  explicit LeaveSignalWatcher(ft::ReplicaSession& session)
      : thread_([this, &session](const std::stop_token& stop) {
          while (!stop.stop_requested() && request_ == 0) {
            std::this_thread::sleep_for(kPollInterval);
            if (const int request = take_signal_request(); request > 0) {
              request_ = request;
              session.leave();
            }
          }
        }) {}

  // The last nonzero result of take_signal_request(), or 0.
  int request() const { return request_; }

 private:
  static constexpr std::chrono::milliseconds kPollInterval{50};
  std::atomic<int> request_{0};
  std::jthread thread_;
};

}  // namespace sherd::tools
