// SPDX-License-Identifier: Apache-2.0
//
// Decides whom to leave out when a ring, or the trees that connect more members, cannot be
// connected because links are dead. link_history.h remembers such links. Thread rule: pure
// functions.
#pragma once

#include <string>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

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

}  // namespace sherd::ft
