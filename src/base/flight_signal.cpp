// SPDX-License-Identifier: Apache-2.0
#include "base/flight_signal.h"

#include <pthread.h>
#include <atomic>
#include <chrono>
#include <csignal>
#include <utility>
#include "base/log.h"

namespace sherd {
namespace {

constexpr std::chrono::milliseconds kPollInterval{50};

// The number of signals so far: the only thing that a handler may safely touch.
std::atomic<int> asked{0};
static_assert(std::atomic<int>::is_always_lock_free);

int install_handler() {
  struct sigaction action = {};
  action.sa_handler = [](int) {
    asked.fetch_add(1, std::memory_order_relaxed);
  };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR2, &action, nullptr);
  return asked.load(std::memory_order_relaxed);
}

}  // namespace

FlightSignal::FlightSignal(std::shared_ptr<const FlightRecorder> recorder)
    : recorder_(std::move(recorder)),
      seen_(install_handler()),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

void FlightSignal::watch(const std::stop_token& stop) {
  ::pthread_setname_np(::pthread_self(), "sherd-flight");
  int seen = seen_;
  std::unique_lock lock(mu_);
  while (!stop.stop_requested()) {
    stopped_.wait_for(lock, stop, kPollInterval, [] { return false; });
    const int now = asked.load(std::memory_order_relaxed);
    if (now == seen) {
      continue;
    }
    seen = now;
    if (auto status = recorder_->write(); !status.ok()) {
      log_warning(status.message());
    }
  }
}

}  // namespace sherd
