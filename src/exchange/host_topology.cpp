// SPDX-License-Identifier: Apache-2.0
#include "exchange/host_topology.h"

#include <utility>

#include "base/check.h"

namespace sherd::exchange {

HostTopology::HostTopology(std::vector<std::vector<int>> hosts, int rank)
    : hosts_(std::move(hosts)), rank_(rank) {
  std::size_t ranks = 0;
  for (const auto& members : hosts_) {
    ranks += members.size();
  }
  places_.resize(ranks, {-1, -1});
  for (std::size_t h = 0; h < hosts_.size(); ++h) {
    for (std::size_t l = 0; l < hosts_[h].size(); ++l) {
      auto& place = places_.at(index(hosts_[h][l]));
      SHERD_ASSERT(place.host < 0, "each rank is on one host");
      place = {static_cast<int>(h), static_cast<int>(l)};
    }
  }
  for (int other = 0; other < static_cast<int>(ranks); ++other) {
    if (proxy_of(other, host()) == rank_) {
      proxied_ranks_.push_back(other);
    }
  }
}

// Ranks with the same position on their hosts serve each other where hosts have
// equally many; where not, positions beyond the end begin again.
int HostTopology::proxy_of(int rank, int host) const {
  const auto& members = on(host);
  return members[index(local_of(rank)) % members.size()];
}

}  // namespace sherd::exchange
