// SPDX-License-Identifier: Apache-2.0
//
// Waits on c10d's stores that poll. A store's own wait keeps other threads from the store meanwhile,
// whose keys a peer may need before it sets the one that is awaited, and prints two warnings when it
// times out. Thread rule: any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include "base/backoff.h"
#include "base/clock.h"

namespace sherd::world {

// Looks whether something is `found` until it is or `end` has come, with such pauses, and returns
// whether it is. Throws if the wait is interrupted.
bool look_until(
    Instant end,
    const BackoffOptions& pauses,
    const std::function<bool()>& found);

// Waits until `key` exists, but for at most a quarter of a second, so that the caller can look at
// other evidence in between. Returns whether it exists. Throws if the store is lost.
bool wait_for_key(
    c10d::Store& store,
    const std::string& key,
    std::chrono::milliseconds timeout);

// Lends a store to a c10d backend, which waits for keys of its peers.
class PollingStore : public c10d::PrefixStore {
 public:
  using PrefixStore::PrefixStore;

  std::vector<std::uint8_t> get(const std::string& key) override;
  std::vector<std::vector<std::uint8_t>> multiGet(
      const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) override;
};

}  // namespace sherd::world
