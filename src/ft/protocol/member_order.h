// SPDX-License-Identifier: Apache-2.0
//
// Chooses the order of an epoch's members so that their ring or trees use as few bad
// or slow links (link_history.h) as possible. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

enum class LinkQuality { kGood, kSlow, kBad };
// A link has no direction.
using LinkQualityOf = std::function<LinkQuality(ReplicaId, ReplicaId)>;

// The cost of the links that the members use in this order. A bad link costs more than all links
// that can be slow together.
std::int64_t cost_of_order(
    const std::vector<Member>& members, const LinkQualityOf& quality);

// The members in the cheapest order that can be found; the given order unless another one costs
// less. Deterministic.
std::vector<Member> order_of(
    std::vector<Member> members, const LinkQualityOf& quality);

}  // namespace sherd::ft
