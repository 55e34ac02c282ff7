// SPDX-License-Identifier: Apache-2.0
#include "world/store_wait.h"

#include <algorithm>
#include <thread>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include "base/check.h"
#include "base/interrupt.h"
#include "base/status.h"
#include "world/detached_call.h"

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

StoreOfAnother::StoreOfAnother(
    const std::string& prefix,
    c10::intrusive_ptr<c10d::Store> store,
    Names names,
    std::chrono::milliseconds patience)
    : PrefixStore(prefix, std::move(store)),
      names_(std::move(names)),
      patience_(patience) {}

void StoreOfAnother::set_patience(std::chrono::milliseconds patience) {
  patience_.store(patience, std::memory_order_relaxed);
}

// The call may outlive this object. When its answer is here it has let go of the store, whose port
// the next world may need.
template <typename Call>
auto StoreOfAnother::answer_to(Call call) {
  auto answer =
      start_detached([kept = store_, call = std::move(call)]() mutable {
        const auto store = std::move(kept);
        return call(*store);
      });
  const auto patience = patience_.load(std::memory_order_relaxed);
  if (answer.wait_for(patience) != std::future_status::ready) {
    throw Error(
        str("[world] ", names_.keeper, " did not answer rank ", names_.rank,
            " within ", seconds(patience), " s: it keeps the store at ",
            names_.place,
            ", and its process stands still, or its host is out of reach"),
        ErrorCode::kDeadlineExceeded);
  }
  return answer.get();
}

void StoreOfAnother::set(
    const std::string& key, const std::vector<std::uint8_t>& value) {
  answer_to([key = joinKey(key), value](c10d::Store& s) { s.set(key, value); });
}

std::vector<std::uint8_t> StoreOfAnother::compareSet(
    const std::string& key,
    const std::vector<std::uint8_t>& expected,
    const std::vector<std::uint8_t>& desired) {
  return answer_to([key = joinKey(key), expected, desired](c10d::Store& s) {
    return s.compareSet(key, expected, desired);
  });
}

std::vector<std::uint8_t> StoreOfAnother::get(const std::string& key) {
  return answer_to([key = joinKey(key)](c10d::Store& s) { return s.get(key); });
}

std::int64_t StoreOfAnother::add(const std::string& key, std::int64_t value) {
  return answer_to([key = joinKey(key), value](c10d::Store& s) {
    return s.add(key, value);
  });
}

bool StoreOfAnother::check(const std::vector<std::string>& keys) {
  return answer_to(
      [keys = joinKeys(keys)](c10d::Store& s) { return s.check(keys); });
}

std::vector<std::vector<std::uint8_t>> StoreOfAnother::multiGet(
    const std::vector<std::string>& keys) {
  return answer_to(
      [keys = joinKeys(keys)](c10d::Store& s) { return s.multiGet(keys); });
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
