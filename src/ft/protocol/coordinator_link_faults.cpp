// SPDX-License-Identifier: Apache-2.0
//
// Which links the coordinator suspects.
#include <algorithm>

#include "ft/protocol/coordinator.h"

namespace sherd::ft {

void Coordinator::link_fails(ReplicaId one, ReplicaId other) {
  link_faults_.suspect(one, other, history_.epoch);
}

// The members that have not joined the epoch yet.
std::vector<ReplicaId> Coordinator::unjoined_members(
    const std::vector<Member>& members, const Epoch& epoch) const {
  std::vector<ReplicaId> late;
  for (const auto& member : members) {
    if (replicas_.at(member.replica).report.joined != epoch) {
      late.push_back(member.replica);
    }
  }
  return late;
}

// When two neighbours and nobody else have not joined, their link is to blame. True: the next ring
// avoids the link, and neither replica is penalised.
bool Coordinator::suspect_link(
    const std::vector<Member>& ring,
    const std::vector<ReplicaId>& late,
    const Epoch& epoch) {
  // Among fewer each is next to each.
  constexpr std::size_t kOtherRings = 4;
  if (late.size() != 2 || ring.size() < kOtherRings) {
    return false;
  }
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const auto one = ring[i].replica;
    const auto next = ring[(i + 1) % ring.size()].replica;
    if (std::minmax(one, next) == std::minmax(late[0], late[1])) {
      return link_faults_.suspect(one, next, epoch);
    }
  }
  return false;
}

}  // namespace sherd::ft
