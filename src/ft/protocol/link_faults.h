// SPDX-License-Identifier: Apache-2.0
//
// Links between replicas that carry nothing: whom to leave out when a ring, or the trees of more
// members, cannot be connected. LinkFaults remembers links for as long as both ends live: a link is
// bad once it could not be connected, or was suspected in two epochs, and good again when one of its
// ends starts anew. member_order.h orders members round such links. Thread rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
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

// A link that carries nothing, as the one that noticed it first has told.
struct BrokenLink {
  ReplicaId accused = 0;
  ReplicaId noticed_by = 0;  // The accused itself: it says nothing at all.
  bool operator==(const BrokenLink&) const = default;
};

// `reporter` tells of the suspicion.
BrokenLink link_of(const Suspicion& suspicion, ReplicaId reporter);
// Those of the members that have not joined, `late`, and say nothing about it. Of two that are
// connected it may be the link.
std::vector<BrokenLink> links_of_silent(
    const std::vector<Member>& ring, const std::vector<ReplicaId>& late);

// As few replicas as can be found without which none of the links is left, ascending: the end of most
// broken links first, and of one link the accused. A link says nothing about which of its ends is to
// blame, but two links with a common end do. Deterministic.
std::vector<ReplicaId> culprits_of(const std::vector<BrokenLink>& links);

// "it is left out: no ring link between it and replica 0 and replica 2 carries anything".
std::string why_left_out(
    ReplicaId culprit, const std::vector<BrokenLink>& links);

class LinkFaults {
 public:
  // A link has no direction. In one epoch it counts once, whoever suspects it. True: it has become
  // bad just now.
  bool suspect(ReplicaId one, ReplicaId other, const Epoch& epoch);
  // It could not be connected, which makes it bad at once. True: it was not bad before.
  bool fail(ReplicaId one, ReplicaId other, const Epoch& epoch);
  // This replica has started anew.
  void forget(ReplicaId replica);

  bool bad(ReplicaId one, ReplicaId other) const;

  using All = std::map<std::pair<ReplicaId, ReplicaId>, SuspicionCount>;
  const All& all() const { return all_; }

  bool operator==(const LinkFaults&) const = default;

 private:
  All all_;  // By the lower and the higher number of its ends.
};

}  // namespace sherd::ft
