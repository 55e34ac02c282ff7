// SPDX-License-Identifier: Apache-2.0
//
// SignalFd turns signals that concern a program into readable events for as long as it lives,
// except those that are ignored (nohup, background jobs of scripts). It ignores SIGPIPE. Thread
// rule: the thread that constructs it; threads started later inherit what it blocks.
#pragma once

#include <csignal>
#include <initializer_list>
#include <vector>
#include "base/descriptor.h"
#include "base/process.h"

namespace sherd {

// Whether this process ignores the signal, as nohup makes it do.
bool is_signal_ignored(int signal);

class SignalFd {
 public:
  // SIGCHLD is taken even if it was ignored: the kernel would reap children whose parent ignores
  // it, and their exit statuses would be lost. Throws Error if the system has no descriptor left.
  explicit SignalFd(std::initializer_list<int> signals);
  ~SignalFd();
  SignalFd(const SignalFd&) = delete;
  SignalFd& operator=(const SignalFd&) = delete;

  // Readable when a signal has arrived.
  int fd() const { return events_.get(); }
  // The signals that have arrived since the last call, in order; does not wait.
  std::vector<int> take() const;

  // The state found at construction, which a child restores before exec.
  const SignalState& before() const { return before_; }

 private:
  SignalState before_;
  Descriptor events_;
};

}  // namespace sherd
