// SPDX-License-Identifier: Apache-2.0
//
// SumStore decides which sums a rank keeps for replicas that catch up: a few
// always, and while somebody has yet to come so far as many as there is room for.
// Thread rule: a value.
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
    std::uint64_t bytes_max = 0;  // Of all, when there are more.
  };
  explicit SumStore(const Limits& limits);

  // Behind those that are there. What was kept of its base or later states is
  // dropped: it was rolled back.
  void keep(const Commit& commit, std::shared_ptr<const std::string> bytes);
  // Somebody who has come to `step` needs what follows, until then.
  void hold(std::int64_t step, Instant until);
  // Drops what nobody needs; `step_in_use`: somebody has come so far, now.
  void trim(Instant now, std::optional<std::int64_t> step_in_use);

  // Null: there is none. The next keep() or trim() may end it.
  const StoredSum* find(const StateId& base) const;
  // That sum is not there and may come: it is behind the last one.
  bool may_come(const StateId& base) const;
  // "the sums that made steps 5 to 8".
  std::string text() const;
  std::size_t size() const { return sums_.size(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  const Limits limits_;
  std::deque<StoredSum> sums_;              // Ascending.
  std::uint64_t bytes_ = 0;               // Of them.
  std::map<std::int64_t, Instant> held_;  // By step.
};

}  // namespace sherd::ft::transfer
