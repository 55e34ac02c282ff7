// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/member_order.h"

#include <algorithm>
#include <cstddef>

#include "ft/protocol/reduce_shape.h"

namespace sherd::ft {
namespace {

using Members = std::vector<Member>;

// By position, the positions of those that it is connected with.
using Peers = std::vector<std::vector<int>>;

Peers peers_of_all(const Members& members) {
  const auto count = static_cast<int>(members.size());
  Peers peers;
  for (int position = 0; position < count; ++position) {
    peers.push_back(peers_of(count, position));
  }
  return peers;
}

std::int64_t cost_of(
    const LinkQualityOf& quality, const Member& one, const Member& other) {
  // More than there are links between members.
  constexpr std::int64_t kBadLink = std::int64_t{1} << 20;
  switch (quality(one.replica, other.replica)) {
    case LinkQuality::kGood:
      return 0;
    case LinkQuality::kSlow:
      return 1;
    case LinkQuality::kBad:
      break;
  }
  return kBadLink;
}

// ---- trees: two members change places ----

std::int64_t cost_at(
    const LinkQualityOf& quality,
    const Members& members,
    const Peers& peers,
    std::size_t at) {
  std::int64_t cost = 0;
  for (const int peer : peers[at]) {
    cost +=
        cost_of(quality, members[at], members[static_cast<std::size_t>(peer)]);
  }
  return cost;
}

// False: nobody's place is a better one for who is at `at`.
bool swap(
    const LinkQualityOf& quality,
    Members& members,
    const Peers& peers,
    std::size_t at) {
  const auto cost = [&](std::size_t other) {
    return cost_at(quality, members, peers, at) +
        cost_at(quality, members, peers, other);
  };
  for (std::size_t other = 0; other < members.size(); ++other) {
    const auto before = cost(other);
    std::swap(members[at], members[other]);
    if (cost(other) < before) {
      return true;
    }
    std::swap(members[at], members[other]);
  }
  return false;
}

// False: no swap makes it cheaper.
bool mend_trees(
    const LinkQualityOf& quality, Members& members, const Peers& peers) {
  for (std::size_t at = 0; at < members.size(); ++at) {
    if (cost_at(quality, members, peers, at) > 0 &&
        swap(quality, members, peers, at)) {
      return true;
    }
  }
  return false;
}

// ---- rings: a part of the ring is turned round ----

// Ring links a-b and c-d become a-c and b-d when what lies from b to c is turned
// round, and no other link changes. Here a is the last and b the first. False:
// there is no place where both new ones together cost less than a-b.
bool turn(const LinkQualityOf& quality, Members& ring) {
  const auto cost = cost_of(quality, ring.back(), ring.front());
  for (std::size_t c = 1; c + 2 < ring.size(); ++c) {
    if (cost_of(quality, ring.back(), ring[c]) +
            cost_of(quality, ring.front(), ring[c + 1]) <
        cost) {
      std::reverse(
          ring.begin(), ring.begin() + static_cast<std::ptrdiff_t>(c) + 1);
      return true;
    }
  }
  return false;
}

// False: no turn makes it cheaper.
bool mend_ring(const LinkQualityOf& quality, Members& ring) {
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const auto before = (i + ring.size() - 1) % ring.size();
    if (cost_of(quality, ring[before], ring[i]) == 0) {
      continue;
    }
    Members turned = ring;
    std::rotate(
        turned.begin(), turned.begin() + static_cast<std::ptrdiff_t>(i),
        turned.end());
    if (turn(quality, turned)) {
      ring = std::move(turned);
      return true;
    }
  }
  return false;
}

// Where each two replicas that have a link to avoid have together good links to as many as there are
// members, all can be avoided (Palmer's proof of Ore's theorem): with one such link, from four
// members on.
Members ring_of(Members members, const LinkQualityOf& quality) {
  bool mended = false;
  while (mend_ring(quality, members)) {
    mended = true;
  }
  if (mended) {
    std::rotate(
        members.begin(),
        std::ranges::min_element(members, {}, &Member::replica), members.end());
  }
  return members;
}

}  // namespace

std::int64_t cost_of_order(
    const Members& members, const LinkQualityOf& quality) {
  const auto count = static_cast<int>(members.size());
  std::int64_t cost = 0;
  for (int position = 0; position < count; ++position) {
    for (const int peer : peers_of(count, position)) {
      if (position < peer) {
        cost += cost_of(
            quality, members[static_cast<std::size_t>(position)],
            members[static_cast<std::size_t>(peer)]);
      }
    }
  }
  return cost;
}

// Each change makes it cheaper, so it ends.
Members order_of(Members members, const LinkQualityOf& quality) {
  constexpr std::size_t kOtherOrders = 4;  // Among fewer each is next to each.
  if (members.size() < kOtherOrders) {
    return members;
  }
  if (reduce_shape_of(static_cast<int>(members.size())) == ReduceShape::kRing) {
    return ring_of(std::move(members), quality);
  }
  const Peers peers = peers_of_all(members);
  while (mend_trees(quality, members, peers)) {
  }
  return members;
}

}  // namespace sherd::ft
