// SPDX-License-Identifier: Apache-2.0
//
// Links between replicas that are much slower than most. Each replica tells how fast data come to it
// from its neighbours; the coordinator compares them once a step. A link is slow when it was half as
// fast as the median or less for many steps, and stays so until one of its ends starts anew: it is not
// used then, so that nobody measures it, and orders do not go back and forth. A replica to which all
// links are slow is slow itself, and no order avoids it. Thread rule: values.
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
  // A link is slow after so many judgements.
  static constexpr int kStepsUntilSlow = 8;

  // The speeds of links in use, each as one end has measured it; of both ends' the lower one counts.
  // Those that have become slow just now.
  std::vector<MeasuredLink> judge(const std::vector<MeasuredLink>& links);
  // This replica has started anew.
  void forget(ReplicaId replica);

  bool slow(ReplicaId one, ReplicaId other) const;
  bool any() const;

  // Judgements in a row that found them slow.
  using All = std::map<std::pair<ReplicaId, ReplicaId>, int>;
  const All& all() const { return all_; }

  bool operator==(const SlowLinks&) const = default;

 private:
  All all_;  // By the lower and the higher number of their ends.
};

}  // namespace sherd::ft
