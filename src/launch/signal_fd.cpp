// SPDX-License-Identifier: Apache-2.0
#include "launch/signal_fd.h"

#include <sys/signalfd.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include "base/check.h"

namespace sherd::launch {

SignalFd::SignalFd() {
  sigset_t taken;
  ::sigemptyset(&taken);
  for (const int signal :
       {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) {
    struct sigaction now = {};
    ::sigaction(signal, nullptr, &now);
    // Once blocked, an ignored signal would be delivered nevertheless.
    if (now.sa_handler != SIG_IGN) {
      ::sigaddset(&taken, signal);
    }
  }
  events_ = Descriptor(::signalfd(-1, &taken, SFD_NONBLOCK | SFD_CLOEXEC));
  SHERD_CHECK_AS(
      kUnavailable, events_.open(), "[launch] expected a signal descriptor, ",
      "found: ", std::strerror(errno));
  ::sigprocmask(SIG_BLOCK, &taken, &before_.mask);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before_.pipe);
}

SignalFd::~SignalFd() { before_.restore(); }

std::vector<int> SignalFd::take() {
  std::vector<int> signals;
  signalfd_siginfo event = {};
  while (::read(events_.get(), &event, sizeof event) == sizeof event) {
    signals.push_back(static_cast<int>(event.ssi_signo));
  }
  return signals;
}

}  // namespace sherd::launch
