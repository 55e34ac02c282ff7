// SPDX-License-Identifier: Apache-2.0
//
// What the tests of transfers share: states and commits by number, random bytes, and the result of
// a fetch. Thread rule: one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <gtest/gtest.h>
#include "base/clock.h"
#include "base/status.h"
#include "ft/protocol/messages.h"
#include "ft/transfer/transfer_server.h"
#include "net/net_testing.h"

namespace sherd::ft {

// Computes the digests before it returns.
inline void offer(
    TransferServer& server,
    const StateId& state,
    std::shared_ptr<const std::string> bytes) {
  auto digests = server.digests_of(*bytes);
  server.offer(state, std::move(bytes), std::move(digests));
}

}  // namespace sherd::ft

namespace sherd::ft::testing {

inline constexpr std::uint64_t kRun = 77;
inline constexpr std::size_t kMebi = std::size_t{1} << 20U;

// How long a test waits for anything. Sanitizers make everything slower.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr Duration kTestDeadline = std::chrono::seconds(100);
#else
inline constexpr Duration kTestDeadline = std::chrono::seconds(20);
#endif

inline StateId state_of(std::int64_t step, std::uint64_t lineage = 1) {
  return {step, {lineage, static_cast<std::uint64_t>(step)}};
}

// The commit that leads from the previous step.
inline Commit commit_of(std::int64_t step, std::uint64_t lineage = 1) {
  return {
      .attempt = {{1, 2}, step},
      .base = state_of(step - 1, lineage),
      .result = state_of(step, lineage),
      .gradients = static_cast<std::uint64_t>(step) * 10};
}

inline std::shared_ptr<const std::string> random_bytes(
    std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(count, '\0');
  for (auto& byte : bytes) {
    byte = static_cast<char>(random());
  }
  return std::make_shared<const std::string>(std::move(bytes));
}

// What `done` was called with.
template <typename T>
class CapturedResult {
 public:
  std::function<void(Result<T>)> done() {
    return [this](Result<T> result) {
      EXPECT_FALSE(result_.has_value()) << "called twice";
      result_.emplace(std::move(result));
    };
  }
  bool any() const { return result_.has_value(); }
  const T& value() const { return result_.value().value(); }
  // Empty for a value, or if there is no result yet.
  std::string failure() const {
    return any() && !result_->ok() ? result_->status().message() : "";
  }
  std::optional<ErrorCode> code() const {
    return failure().empty() ? std::nullopt
                             : std::optional(result_->status().code());
  }
  // Runs the loop until the result is there.
  [[nodiscard]] bool comes(
      net::Loop& loop, Duration limit = kTestDeadline) const {
    return net::testing::run_until(loop, [&] { return any(); }, limit);
  }

 private:
  std::optional<Result<T>> result_;
};

}  // namespace sherd::ft::testing
