// SPDX-License-Identifier: Apache-2.0
#include "train/signal_request.h"

#include <unistd.h>
#include <atomic>
#include <csignal>
#include <string_view>

namespace sherd::tools {
namespace {

constexpr std::string_view kInterrupted =
    "sherd train: interrupted, ends after this step; Ctrl-C again ends it at "
    "once\n";

std::atomic<int> asked{0};
std::atomic<bool> answers{false};
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(kSaveRequest < SIGINT && kSaveRequest < SIGTERM);

// Calls only what a signal handler may call.
void ask(int signal) {
  const int request = signal == SIGUSR1 ? kSaveRequest : signal;
  int before = asked.load(std::memory_order_relaxed);
  while (before < request &&
         !asked.compare_exchange_weak(
             before, request, std::memory_order_relaxed)) {
  }
  if (signal == SIGINT && answers.load(std::memory_order_relaxed)) {
    const auto written =
        ::write(STDERR_FILENO, kInterrupted.data(), kInterrupted.size());
    (void)written;  // A closed stderr must not keep the run from saving.
  }
}

void install(int signal, int flags) {
  struct sigaction action = {};
  action.sa_handler = ask;
  action.sa_flags = SA_RESTART | flags;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void install_signal_handlers(bool announces) {
  answers.store(announces, std::memory_order_relaxed);
  install(SIGUSR1, 0);
  install(SIGTERM, 0);
  install(SIGINT, static_cast<int>(SA_RESETHAND));
}

int take_signal_request() {
  int request = kSaveRequest;
  return asked.compare_exchange_strong(request, 0, std::memory_order_relaxed)
      ? kSaveRequest
      : request;
}

}  // namespace sherd::tools
