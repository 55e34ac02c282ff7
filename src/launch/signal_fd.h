// SPDX-License-Identifier: Apache-2.0
//
// SignalFd turns the signals that concern a job into readable events for as long as it lives:
// SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGCHLD, except those that are ignored (nohup,
// background jobs of scripts). It ignores SIGPIPE. Thread rule: one thread, the only one of the
// process.
#pragma once

#include <vector>
#include "base/descriptor.h"
#include "base/process.h"

namespace sherd::launch {

class SignalFd {
 public:
  // Throws Error if the system has no descriptor left.
  SignalFd();
  ~SignalFd();
  SignalFd(const SignalFd&) = delete;
  SignalFd& operator=(const SignalFd&) = delete;

  // Readable when a signal has arrived.
  int fd() const { return events_.get(); }
  // The signals that have arrived since the last call, in order; does not wait.
  std::vector<int> take();

  // The state found at construction, which a child restores before exec.
  const SignalState& before() const { return before_; }

 private:
  SignalState before_;
  Descriptor events_;
};

}  // namespace sherd::launch
