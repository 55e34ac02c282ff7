// SPDX-License-Identifier: Apache-2.0
//
// Finds links between replicas that are much slower than most. Each replica reports how fast data
// arrive from its neighbours, and the coordinator compares the speeds once a step. A link is slow
// once it was at most half as fast as the median for many steps, and stays slow until one of its
// ends restarts: a slow link is no longer used or measured, so forgetting it would make orders
// alternate. A replica whose links are all slow is slow itself, and no order avoids it. Thread
// rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

struct MeasuredLink {
  ReplicaId one = 0;
  ReplicaId other = 0;
  std::uint64_t bytes_per_s = 0;
};

class SlowLinks {
 public:
  // A link is slow after this many judgements in a row.
  static constexpr int kStepsUntilSlow = 8;

  // Takes the speeds of the links in use, each as one end has measured it; if both ends have, the
  // lower speed counts. Returns the links that have just become slow.
  std::vector<MeasuredLink> judge(const std::vector<MeasuredLink>& links);
  // Forgets the links of a replica that has restarted.
  void forget(ReplicaId replica);

  bool slow(ReplicaId one, ReplicaId other) const;
  bool any() const;

  // For each link, how many judgements in a row found it slow.
  using All = std::map<std::pair<ReplicaId, ReplicaId>, int>;
  const All& all() const { return all_; }

  bool operator==(const SlowLinks&) const = default;

 private:
  All all_;  // Keyed by the lower and the higher number of the link's ends.
};

}  // namespace sherd::ft
