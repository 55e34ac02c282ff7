// SPDX-License-Identifier: Apache-2.0
//
// SumStore is the cache of gradient sums that a rank keeps for replicas that catch up: always the
// last few, and as many as there is room for while somebody still needs them. Thread rule: a value.
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

namespace sherd::ft::transfer {

struct StoredSum {
  Commit commit;
  std::shared_ptr<const std::string> bytes;
};

class SumStore {
 public:
  struct Limits {
    std::size_t kept = 0;         // However many bytes they are.
    std::uint64_t bytes_max = 0;  // For all, beyond those kept always.
  };
  explicit SumStore(const Limits& limits);

  // Adds the latest sum. Sums of its base or later states are dropped, because they were rolled
  // back.
  void keep(const Commit& commit, std::shared_ptr<const std::string> bytes);
  // A requester at `step` may need the sums after it until then.
  void hold(std::int64_t step, Instant until);
  // Drops the sums that nobody needs; `step_in_use` is the oldest step that somebody is at now.
  void trim(Instant now, std::optional<std::int64_t> step_in_use);

  // Null: not found. The next keep() or trim() may invalidate the pointer.
  const StoredSum* find(const StateId& base) const;
  // The sum is not here and may still be made: it comes after the last one.
  bool may_come(const StateId& base) const;
  // "the sums that made steps 5 to 8".
  std::string text() const;
  std::size_t size() const { return sums_.size(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  const Limits limits_;
  std::deque<StoredSum> sums_;            // Ascending.
  std::uint64_t bytes_ = 0;               // In sums_.
  std::map<std::int64_t, Instant> held_;  // By step.
};

}  // namespace sherd::ft::transfer
