// SPDX-License-Identifier: Apache-2.0
#include "world/hosts.h"

#include <algorithm>

#include "world/world_impl.h"

namespace sherd::world {

std::vector<std::vector<int>> ranks_by_host(
    const World& world, const std::vector<int>& ranks) {
  const auto& records = world.impl()->records;
  const auto host = [&](int rank) -> const HostIdentity& {
    return records.at(static_cast<std::size_t>(rank)).host;
  };
  std::vector<std::vector<int>> hosts;
  for (const int rank : ranks) {
    const auto known = std::ranges::find_if(hosts, [&](const auto& members) {
      const auto& other = host(members.front());
      return same_host(other, host(rank)) && same_pids(other, host(rank)) &&
          same_network(other, host(rank));
    });
    if (known == hosts.end()) {
      hosts.push_back({rank});
    } else {
      known->push_back(rank);
    }
  }
  return hosts;
}

std::optional<int> first_elsewhere(
    std::span<const RankRecord> records,
    int own,
    const std::vector<int>& ranks) {
  const auto host = [&](int rank) -> const HostIdentity& {
    return records[static_cast<std::size_t>(rank)].host;
  };
  const auto found = std::ranges::find_if(
      ranks, [&](int rank) { return !same_host(host(rank), host(own)); });
  return found == ranks.end() ? std::nullopt : std::optional<int>(*found);
}

}  // namespace sherd::world
