// SPDX-License-Identifier: Apache-2.0
//
// SumStore is the cache of gradient sums that a rank keeps for replicas that catch up: always the
// last few, and as many others as there is room for while some replica still needs them. Thread
// rule: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include "base/clock.h"
#include "ft/protocol/messages.h"
#include "ft/transfer/fetch.h"

namespace sherd::ft::transfer {

class SumStore {
 public:
  struct Limits {
    std::size_t kept = 0;         // Regardless of their size.
    std::uint64_t bytes_max = 0;  // For all sums beyond those.
  };
  explicit SumStore(const Limits& limits);

  // Adds the latest sum. Drops sums whose states were rolled back: those of its base and later
  // ones.
  void keep(const Commit& commit, std::shared_ptr<const std::string> bytes);
  // Until then, a requester at `step` may need the sums after that step.
  void hold(std::int64_t step, Instant until);
  // Drops the sums that nobody needs; `step_in_use` is the oldest step at which a requester is now.
  void trim(Instant now, std::optional<std::int64_t> step_in_use);

  // Null if there is none. The next keep() or trim() may invalidate the pointer.
  const CommittedSum* find(const StateId& base) const;
  // Whether the sum is not here but may still be made, because it comes after the last one.
  bool may_come(const StateId& base) const;
  // "the sums that made steps 5 to 8".
  std::string text() const;
  std::size_t size() const { return sums_.size(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  const Limits limits_;
  std::deque<CommittedSum> sums_;         // Ascending.
  std::uint64_t bytes_ = 0;               // The size of sums_.
  std::map<std::int64_t, Instant> held_;  // Keyed by step.
};

}  // namespace sherd::ft::transfer
