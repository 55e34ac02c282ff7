// SPDX-License-Identifier: Apache-2.0
#include "train/signal_request.h"

#include <unistd.h>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <string_view>
#include "base/clock.h"
#include "base/signal_fd.h"

namespace sherd::tools {
namespace {

constexpr std::string_view kInterrupted =
    "sherd train: interrupted, ends after this step; Ctrl-C again ends it at "
    "once\n";

// A signal to all processes of a job comes twice within this time: a rank also gets it from the
// launcher, its parent.
constexpr Duration kSameInterrupt = std::chrono::seconds(1);

std::atomic<int> asked{0};
std::atomic<std::int64_t> interrupted_ns{0};  // Since boot; 0: not yet.
std::atomic<bool> first_by_parent{false};
std::atomic<bool> answers{false};
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

// These two call only what a signal handler may call.
void interrupt(bool by_parent) {
  const std::int64_t now = SteadyClock().now().count();
  std::int64_t first = 0;
  if (!interrupted_ns.compare_exchange_strong(
          first, now, std::memory_order_relaxed)) {
    if (by_parent == first_by_parent.load(std::memory_order_relaxed) ||
        now - first > kSameInterrupt.count()) {
      ::signal(SIGINT, SIG_DFL);
      ::raise(SIGINT);  // Ends the process when the handler returns.
    }
    return;
  }
  first_by_parent.store(by_parent, std::memory_order_relaxed);
  if (answers.load(std::memory_order_relaxed)) {
    const auto written =
        ::write(STDERR_FILENO, kInterrupted.data(), kInterrupted.size());
    (void)written;  // A closed stderr must not keep the run from saving.
  }
}

void ask(int signal, siginfo_t* from, void* /*context*/) {
  const int request = signal == SIGUSR1 ? kSaveRequest : kSaveRequest + signal;
  int before = asked.load(std::memory_order_relaxed);
  while (before < request &&
         !asked.compare_exchange_weak(
             before, request, std::memory_order_relaxed)) {
  }
  if (signal == SIGINT) {
    interrupt(from->si_code <= 0 && from->si_pid == ::getppid());
  }
}

void install(int signal) {
  struct sigaction action = {};
  action.sa_sigaction = ask;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void accept_save_requests() { install(SIGUSR1); }

void install_signal_handlers(bool announces) {
  answers.store(announces, std::memory_order_relaxed);
  accept_save_requests();
  install(SIGTERM);
  install(SIGINT);
  if (!is_signal_ignored(SIGHUP)) {
    install(SIGHUP);
  }
}

int take_signal_request() {
  int request = kSaveRequest;
  return asked.compare_exchange_strong(request, 0, std::memory_order_relaxed)
      ? kSaveRequest
      : request;
}

}  // namespace sherd::tools
