// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/member_order.h"

#include <algorithm>
#include <cstddef>

#include "ft/protocol/reduce_shape.h"

namespace sherd::ft {
namespace {

using Members = std::vector<Member>;

// For each position, the positions that it is connected with.
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
  // More than the number of links between members.
  constexpr std::int64_t kBadLink = std::int64_t{1} << 20;
  const auto found = quality(one.replica, other.replica);
  return found == LinkQuality::kBad ? kBadLink
      : found == LinkQuality::kSlow ? 1
                                    : 0;
}

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

// ---- trees: two members swap places ----

// Returns false if no swap with another place makes the order cheaper.
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

// Returns false if no swap makes the order cheaper.
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

// ---- rings: a part of the ring is reversed ----

// Reversing the part from b to c turns the ring links a-b and c-d into a-c and b-d and changes no
// other link. Here a is the last member and b the first. Returns false if at no place the two new
// links together cost less than a-b.
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

// Returns false if no reversal makes the order cheaper.
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

// If any two replicas whose link is to be avoided together have good links to at least as many
// replicas as there are members, all such links can be avoided (Palmer's proof of Ore's theorem).
// With a single link to avoid this holds from four members on.
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
  const Peers peers = peers_of_all(members);
  std::int64_t cost = 0;
  for (std::size_t at = 0; at < members.size(); ++at) {
    cost += cost_at(quality, members, peers, at);
  }
  return cost / 2;  // Each link was counted at both of its ends.
}

// Each change makes the order cheaper, so the loop ends.
Members order_of(Members members, const LinkQualityOf& quality) {
  // With fewer members each is next to every other one.
  constexpr std::size_t kOtherOrders = 4;
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
