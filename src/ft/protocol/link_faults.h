// SPDX-License-Identifier: Apache-2.0
//
// Decides whom to leave out when a ring, or the trees that connect more members, cannot be
// connected because links are dead. LinkFaults remembers links for as long as both ends live: a
// link is bad once it could not be connected or was suspected in two epochs, and good again when
// one of its ends restarts. member_order.h orders members so that they avoid such links. Thread
// rule: values.
#pragma once

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

// A link that carries nothing, as reported by the replica that noticed it first.
struct BrokenLink {
  ReplicaId accused = 0;
  // Equal to the accused if that replica reports nothing at all.
  ReplicaId noticed_by = 0;
  bool operator==(const BrokenLink&) const = default;
};

// `reporter` has reported the suspicion.
BrokenLink link_of(const Suspicion& suspicion, ReplicaId reporter);
// `late` are the members that have not joined and report nothing. If there are two and they are
// connected, the link between them may be the cause; otherwise each accuses itself.
std::vector<BrokenLink> links_of_silent(
    const std::vector<Member>& ring, const std::vector<ReplicaId>& late);

// The fewest replicas that can be found without which none of the links is left, ascending. The end
// of the most broken links goes first; of a single link, it is the accused. One link does not show
// which of its ends is to blame, but two links with a common end do. Deterministic.
std::vector<ReplicaId> culprits_of(const std::vector<BrokenLink>& links);

// "it is left out: no ring link between it and replica 0 and replica 2 carries anything".
std::string why_left_out(
    ReplicaId culprit, const std::vector<BrokenLink>& links);

class LinkFaults {
 public:
  // Records a suspicion. A link has no direction, and counts once per epoch no matter who suspects
  // it. Returns true if the link has just become bad.
  bool suspect(ReplicaId one, ReplicaId other, const Epoch& epoch);
  // Records that the link could not be connected, which makes it bad at once. Returns true if it
  // was not bad before.
  bool fail(ReplicaId one, ReplicaId other, const Epoch& epoch);
  // Forgets the links of a replica that has restarted.
  void forget(ReplicaId replica);

  bool bad(ReplicaId one, ReplicaId other) const;

  using All = std::map<std::pair<ReplicaId, ReplicaId>, SuspicionCount>;
  const All& all() const { return all_; }

  bool operator==(const LinkFaults&) const = default;

 private:
  All all_;  // Keyed by the lower and the higher number of the link's ends.
};

}  // namespace sherd::ft
