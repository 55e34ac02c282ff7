// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/link_faults.h"

#include <algorithm>
#include <cstddef>

namespace sherd::ft {
namespace {

constexpr int kBad = 2;
// Whoever makes up links fills no memory.
constexpr std::size_t kLinksMax = 4096;

std::pair<ReplicaId, ReplicaId> key_of(ReplicaId one, ReplicaId other) {
  return std::minmax(one, other);
}

using Members = std::vector<Member>;

// Ring links a-b and c-d become a-c and b-d when what lies from b to c is turned
// round, and no other link changes. Here a is the last and b the first. False:
// there is no place where both new ones are good.
bool turn(const LinkFaults& links, Members& ring) {
  for (std::size_t c = 1; c + 2 < ring.size(); ++c) {
    if (!links.bad(ring.back().replica, ring[c].replica) &&
        !links.bad(ring.front().replica, ring[c + 1].replica)) {
      std::reverse(
          ring.begin(), ring.begin() + static_cast<std::ptrdiff_t>(c) + 1);
      return true;
    }
  }
  return false;
}

// One bad link less; false: none can be mended.
bool mend(const LinkFaults& links, Members& ring) {
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const auto before = (i + ring.size() - 1) % ring.size();
    if (!links.bad(ring[before].replica, ring[i].replica)) {
      continue;
    }
    Members turned = ring;
    std::rotate(
        turned.begin(), turned.begin() + static_cast<std::ptrdiff_t>(i),
        turned.end());
    if (turn(links, turned)) {
      ring = std::move(turned);
      return true;
    }
  }
  return false;
}

}  // namespace

bool LinkFaults::suspect(ReplicaId one, ReplicaId other, const Epoch& epoch) {
  const auto key = key_of(one, other);
  if (one == other || (all_.size() >= kLinksMax && !all_.contains(key))) {
    return false;
  }
  auto& suspected = all_[key];
  if (suspected.epochs > 0 && epoch <= suspected.last) {
    return false;
  }
  suspected.last = epoch;
  suspected.epochs = std::min(suspected.epochs + 1, kBad + 1);
  return suspected.epochs == kBad;
}

void LinkFaults::forget(ReplicaId replica) {
  std::erase_if(all_, [&](const auto& one) {
    return one.first.first == replica || one.first.second == replica;
  });
}

bool LinkFaults::bad(ReplicaId one, ReplicaId other) const {
  const auto found = all_.find(key_of(one, other));
  return found != all_.end() && found->second.epochs >= kBad;
}

// Each time there are fewer bad links, so it ends. Where each two replicas that
// have a bad link have together good links to as many as there are members, all
// can be mended (Palmer's proof of Ore's theorem): with one bad link, from four
// members on.
std::vector<Member> LinkFaults::ring_of(std::vector<Member> members) const {
  if (all_.empty() || members.size() < 4) {
    return members;
  }
  bool mended = false;
  while (mend(*this, members)) {
    mended = true;
  }
  if (mended) {
    std::rotate(
        members.begin(),
        std::min_element(
            members.begin(), members.end(),
            [](const auto& a, const auto& b) { return a.replica < b.replica; }),
        members.end());
  }
  return members;
}

}  // namespace sherd::ft
