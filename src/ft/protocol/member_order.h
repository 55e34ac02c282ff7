// SPDX-License-Identifier: Apache-2.0
//
// The order of an epoch's members, in which their ring or trees use as few links as can be that are bad
// (link_faults.h) or slow (slow_links.h). Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

enum class LinkQuality { kGood, kSlow, kBad };
// A link has no direction.
using LinkQualityOf = std::function<LinkQuality(ReplicaId, ReplicaId)>;

// What the links cost that the members use in this order. A bad one costs more than all that can be slow.
std::int64_t cost_of_order(
    const std::vector<Member>& members, const LinkQualityOf& quality);

// The members in an order that costs as little as can be found; the given order if no other is found
// that costs less. Deterministic.
std::vector<Member> order_of(
    std::vector<Member> members, const LinkQualityOf& quality);

}  // namespace sherd::ft
