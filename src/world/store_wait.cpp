// SPDX-License-Identifier: Apache-2.0
#include "world/store_wait.h"

#include <algorithm>
#include <thread>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include "base/check.h"
#include "base/interrupt.h"

namespace sherd::world {
namespace {

constexpr BackoffOptions kKeyPauses{
    .first = std::chrono::microseconds(200),
    .longest = std::chrono::milliseconds(10)};

}  // namespace

bool look_until(
    Instant end,
    const BackoffOptions& pauses,
    const std::function<bool()>& found) {
  const SteadyClock clock;
  Backoff backoff(pauses);
  InterruptibleWait interrupts;
  while (!found()) {
    interrupts.poll().throw_if_failed();
    const Duration rest = end - clock.now();
    if (rest <= Duration(0)) {
      return false;
    }
    std::this_thread::sleep_for(std::min(backoff.next(), rest));
  }
  return true;
}

bool wait_for_key(
    c10d::Store& store,
    const std::string& key,
    std::chrono::milliseconds timeout) {
  constexpr Duration kSlice = std::chrono::milliseconds(250);
  return look_until(
      SteadyClock().now() + std::min<Duration>(timeout, kSlice), kKeyPauses,
      [&] { return store.check({key}); });
}

std::vector<std::uint8_t> PollingStore::get(const std::string& key) {
  wait({key});
  return PrefixStore::get(key);
}

std::vector<std::vector<std::uint8_t>> PollingStore::multiGet(
    const std::vector<std::string>& keys) {
  wait(keys);
  return PrefixStore::multiGet(keys);
}

void PollingStore::wait(const std::vector<std::string>& keys) {
  wait(keys, getTimeout());
}

// Not interruptible: the thread may be one that nobody waits for any more.
void PollingStore::wait(
    const std::vector<std::string>& keys,
    const std::chrono::milliseconds& timeout) {
  const SteadyClock clock;
  const Instant end = clock.now() + timeout;
  Backoff backoff(kKeyPauses);
  while (!check(keys)) {
    if (timeout != kNoTimeout && clock.now() >= end) {
      C10_THROW_ERROR(
          DistStoreError,
          str("nobody set ", c10::Join(", ", keys), " within ",
              seconds(timeout), " s"));
    }
    std::this_thread::sleep_for(backoff.next());
  }
}

}  // namespace sherd::world
