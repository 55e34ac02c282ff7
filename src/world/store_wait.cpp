// SPDX-License-Identifier: Apache-2.0
#include "world/store_wait.h"

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "base/backoff.h"
#include "base/clock.h"
#include "base/interrupt.h"

namespace sherd::world {

// Polls, because a store's own wait prints two warnings when it times out.
bool wait_for_key(
    c10d::Store& store,
    const std::string& key,
    std::chrono::milliseconds timeout) {
  constexpr Duration kSlice = std::chrono::milliseconds(250);
  const SteadyClock clock;
  const Instant end = clock.now() + std::min<Duration>(timeout, kSlice);
  Backoff backoff(
      {.first = std::chrono::microseconds(200),
       .longest = std::chrono::milliseconds(10)});
  InterruptibleWait interrupts;
  while (!store.check({key})) {
    interrupts.poll().throw_if_failed();
    const Duration rest = end - clock.now();
    if (rest <= Duration(0)) {
      return false;
    }
    std::this_thread::sleep_for(std::min(backoff.next(), rest));
  }
  return true;
}

}  // namespace sherd::world
