// SPDX-License-Identifier: Apache-2.0
#include "exchange/host_topology.h"

#include <gtest/gtest.h>

namespace sherd::exchange {
namespace {

using RanksByHost = std::vector<std::vector<int>>;

TEST(HostTopology, EqualHostsHaveColumns) {
  const HostTopology map({{0, 1}, {2, 3}, {4, 5}}, 3);
  EXPECT_EQ(map.host(), 1);
  EXPECT_EQ(map.local_rank(), 1);
  EXPECT_EQ(map.neighbours(), (std::vector<int>{2, 3}));
  EXPECT_EQ(map.proxied_ranks(), (std::vector<int>{1, 3, 5}));
  EXPECT_EQ(map.proxy_of(3, 0), 1);
  EXPECT_EQ(map.proxy_of(3, 2), 5);
}

// On each host everybody has exactly one stand-in, at home itself, and the
// proxied_ranks of a host's ranks are all ranks, once.
TEST(HostTopology, EveryRankHasOneStandInOnEachHost) {
  for (const auto& hosts :
       {RanksByHost{{0, 1, 2}, {3, 4, 5, 6}}, RanksByHost{{0}, {1}, {2}},
        RanksByHost{{0, 3, 4}, {1}, {2, 5}}, RanksByHost{{0, 1, 2, 3}}}) {
    for (const auto& members : hosts) {
      std::vector<int> seen(7, 0);
      int ranks = 0;
      for (const auto& all : hosts) {
        ranks += static_cast<int>(all.size());
      }
      for (const int rank : members) {
        const HostTopology map(hosts, rank);
        EXPECT_EQ(map.proxy_of(rank, map.host()), rank);
        for (const int charge : map.proxied_ranks()) {
          ++seen[static_cast<std::size_t>(charge)];
        }
        // None has more than its part.
        const int most =
            (ranks + map.local_ranks() - 1) / map.local_ranks() + map.hosts();
        EXPECT_LE(static_cast<int>(map.proxied_ranks().size()), most);
      }
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(seen[static_cast<std::size_t>(rank)], 1);
      }
    }
  }
}

}  // namespace
}  // namespace sherd::exchange
