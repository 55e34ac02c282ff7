// SPDX-License-Identifier: Apache-2.0
//
// Waits on c10d's stores that poll. A store's own wait keeps other threads from the store meanwhile,
// whose keys a peer may need before it sets the one that is awaited, and prints two warnings when it
// times out. Thread rule: any thread.
#pragma once

#include <atomic>
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

// A store that another process keeps. c10d waits without a limit for its answers, which do not come
// while that process is stopped or its host cannot be reached. Here such a call throws an Error that
// begins with "[world] KEEPER did not answer rank RANK" once the patience has passed. Calls that
// wait for keys do so only by looking at them.
class StoreOfAnother final : public c10d::PrefixStore {
 public:
  struct Names {
    std::string keeper;  // "rank 0"
    std::string place;   // Its address, for the error.
    int rank = 0;        // Who asks.
  };
  StoreOfAnother(
      const std::string& prefix,
      c10::intrusive_ptr<c10d::Store> store,
      Names names,
      std::chrono::milliseconds patience);

  void set_patience(std::chrono::milliseconds patience);

  using Store::compareSet;
  using Store::set;
  void set(
      const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(
      const std::string& key,
      const std::vector<std::uint8_t>& expected,
      const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool check(const std::vector<std::string>& keys) override;
  std::vector<std::vector<std::uint8_t>> multiGet(
      const std::vector<std::string>& keys) override;

 private:
  template <typename Call>
  auto answer_to(Call call);

  const Names names_;
  std::atomic<std::chrono::milliseconds> patience_;
};

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
