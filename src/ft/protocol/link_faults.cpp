// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/link_faults.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "ft/protocol/reduce_shape.h"

namespace sherd::ft {
BrokenLink link_of(const Suspicion& suspicion, ReplicaId reporter) {
  return {suspicion.accused, suspicion.noticed_by.value_or(reporter)};
}

// The receiving end of a link is the accused, so it is left out first.
std::vector<BrokenLink> links_of_silent(
    const std::vector<Member>& ring, const std::vector<ReplicaId>& late) {
  constexpr int kOthers = 3;
  const auto count = static_cast<int>(ring.size());
  for (int i = 0; late.size() == 2 && count >= kOthers && i < count; ++i) {
    const auto one = ring[static_cast<std::size_t>(i)].replica;
    for (const int to : receivers_of(count, i)) {
      const auto other = ring[static_cast<std::size_t>(to)].replica;
      if (std::minmax(one, other) == std::minmax(late[0], late[1])) {
        return {{.accused = other, .noticed_by = one}};
      }
    }
  }
  std::vector<BrokenLink> links;
  for (const auto replica : late) {
    links.push_back({.accused = replica, .noticed_by = replica});
  }
  return links;
}

std::string why_left_out(
    ReplicaId culprit, const std::vector<BrokenLink>& links) {
  std::string ends;
  for (const auto& link : links) {
    if (link.accused == culprit || link.noticed_by == culprit) {
      const auto other =
          link.accused == culprit ? link.noticed_by : link.accused;
      if (other == culprit) {
        return "it is left out: it has not joined in time";
      }
      ends += (ends.empty() ? "" : " and ") + name_of(other);
    }
  }
  return str(
      "it is left out: no ring link between it and ", ends,
      " carries anything");
}

std::vector<ReplicaId> culprits_of(const std::vector<BrokenLink>& links) {
  std::set<ReplicaId> culprits;
  const auto is_left = [&](const BrokenLink& link) {
    return !culprits.contains(link.accused) &&
        !culprits.contains(link.noticed_by);
  };
  // Silent members are to blame no matter what else is broken.
  for (const auto& link : links) {
    if (link.accused == link.noticed_by) {
      culprits.insert(link.accused);
    }
  }
  for (;;) {
    // For each replica, how many links it has and in how many it is accused.
    std::map<ReplicaId, std::pair<int, int>> ends;
    for (const auto& link : links) {
      if (is_left(link)) {
        ++ends[link.noticed_by].first;
        ++ends[link.accused].first;
        ++ends[link.accused].second;
      }
    }
    if (ends.empty()) {
      return {culprits.begin(), culprits.end()};
    }
    // The last one of equal elements.
    const auto most = std::max_element(
        ends.rbegin(), ends.rend(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    culprits.insert(most->first);
  }
}

}  // namespace sherd::ft
