// SPDX-License-Identifier: Apache-2.0
#include "base/signal_fd.h"

#include <sys/signalfd.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include "base/check.h"

namespace sherd {

bool is_signal_ignored(int signal) {
  struct sigaction now = {};
  ::sigaction(signal, nullptr, &now);
  return now.sa_handler == SIG_IGN;
}

SignalFd::SignalFd(std::initializer_list<int> signals)
    : before_(SignalState::current()) {
  sigset_t taken;
  ::sigemptyset(&taken);
  for (const int signal : signals) {
    // Once blocked, an ignored signal would be delivered nevertheless.
    if (signal == SIGCHLD || !is_signal_ignored(signal)) {
      ::sigaddset(&taken, signal);
    }
  }
  events_ = Descriptor(::signalfd(-1, &taken, SFD_NONBLOCK | SFD_CLOEXEC));
  SHERD_CHECK_AS(
      kUnavailable, events_.open(), "[base] expected a signal descriptor, ",
      "found: ", std::strerror(errno));
  ::pthread_sigmask(SIG_BLOCK, &taken, nullptr);
  struct sigaction action = {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, nullptr);
  if (::sigismember(&taken, SIGCHLD) == 1) {
    action.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &action, nullptr);
  }
}

SignalFd::~SignalFd() { before_.restore(); }

std::vector<int> SignalFd::take() const {
  std::vector<int> signals;
  signalfd_siginfo event = {};
  while (::read(events_.get(), &event, sizeof event) == sizeof event) {
    signals.push_back(static_cast<int>(event.ssi_signo));
  }
  return signals;
}

}  // namespace sherd
