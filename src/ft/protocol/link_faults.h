// SPDX-License-Identifier: Apache-2.0
//
// LinkFaults remembers network links between replicas that have failed, and orders rings so that
// their ends are not neighbours. A link is bad once it was suspected in two epochs, and good again
// when one of its ends starts anew. It improves rings and decides nothing else. Thread rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

// In how many epochs something was suspected. Several suspicions in one epoch count once.
struct SuspicionCount {
  int epochs = 0;
  Epoch last;
  bool operator==(const SuspicionCount&) const = default;
};

class LinkFaults {
 public:
  // A link has no direction. In one epoch it counts once, whoever suspects it. True: it has become
  // bad just now.
  bool suspect(ReplicaId one, ReplicaId other, const Epoch& epoch);
  // This replica has started anew.
  void forget(ReplicaId replica);

  bool bad(ReplicaId one, ReplicaId other) const;

  // The members in an order with as few bad links as can be found; the given order if it has none.
  // Deterministic.
  std::vector<Member> ring_of(std::vector<Member> members) const;

  using All = std::map<std::pair<ReplicaId, ReplicaId>, SuspicionCount>;
  const All& all() const { return all_; }

  bool operator==(const LinkFaults&) const = default;

 private:
  All all_;  // By the lower and the higher number of its ends.
};

}  // namespace sherd::ft
