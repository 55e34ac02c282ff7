// SPDX-License-Identifier: Apache-2.0
//
// LinkFaults remembers between which replicas nothing came through, and orders rings so
// that those are not neighbours. A link is bad when it was suspected in two epochs;
// it is good again when one of its ends starts anew. What it says makes rings
// better and decides nothing else. Thread rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

class LinkFaults {
 public:
  // Both directions of a connection need the link. In one epoch it counts once,
  // whoever says so. True: it has become bad just now.
  bool suspect(ReplicaId one, ReplicaId other, const Epoch& epoch);
  // This replica has started anew.
  void forget(ReplicaId replica);

  bool bad(ReplicaId one, ReplicaId other) const;

  // The same members in an order that has as few bad links as can be found; as it
  // was where it has none. Equal ones for equal arguments.
  std::vector<Member> ring_of(std::vector<Member> members) const;

  // How often each link was suspected.
  struct SuspicionCount {
    int epochs = 0;
    Epoch last;
    bool operator==(const SuspicionCount&) const = default;
  };
  using All = std::map<std::pair<ReplicaId, ReplicaId>, SuspicionCount>;
  const All& all() const { return all_; }

  bool operator==(const LinkFaults&) const = default;

 private:
  All all_;  // By the lower number, then the higher.
};

}  // namespace sherd::ft
