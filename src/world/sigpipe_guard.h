// SPDX-License-Identifier: Apache-2.0
//
// While a SigpipeGuard lives, its thread gets no SIGPIPE. Gloo writes to sockets without
// MSG_NOSIGNAL, so a peer that dies at the wrong moment would kill this process, too. Python hides
// that by ignoring the signal in the whole process, which a library must not do to a C++ program.
// Threads that are started under a guard never get the signal. Costs three system calls. Thread
// rule: one thread.
#pragma once

#include <csignal>
#include <ctime>

namespace sherd::world {

class SigpipeGuard {
 public:
  SigpipeGuard() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeGuard() {
    if (sigismember(&before_, SIGPIPE) != 0) {
      return;  // Blocked by other code, which handles it.
    }
    // A signal that came meanwhile would be delivered by unblocking, so remove it.
    const timespec now{};
    while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
      continue;
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
};

}  // namespace sherd::world
