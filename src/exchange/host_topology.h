// SPDX-License-Identifier: Apache-2.0
//
// Which rank moves whose bytes if ranks of several hosts share units. For each rank of another
// host, one rank of this host is its proxy: only the proxy receives that rank's shards here, and it
// sends that rank what this host has of its gradients. So every byte enters a host once, and the
// ranks of a host divide the work. Ranks are positions in the group. Thread rule: a value.
#pragma once

#include <vector>

namespace sherd::exchange {

class HostTopology {
 public:
  // `hosts` has the ranks by host; each of 0, 1, ... is in exactly one of them.
  HostTopology(std::vector<std::vector<int>> hosts, int rank);

  int rank() const { return rank_; }
  int host() const { return host_of(rank_); }
  int hosts() const { return static_cast<int>(hosts_.size()); }
  // The ranks of this host; their positions in this list are local ranks.
  const std::vector<int>& neighbours() const { return on(host()); }
  int local_rank() const { return local_of(rank_); }
  int local_ranks() const { return static_cast<int>(neighbours().size()); }

  int host_of(int rank) const { return places_[index(rank)].host; }
  int local_of(int rank) const { return places_[index(rank)].local; }
  const std::vector<int>& on(int host) const { return hosts_[index(host)]; }

  // The proxy of `rank` on `host`; on the host of `rank`, that is `rank` itself.
  int proxy_of(int rank, int host) const;
  // The ranks whose proxy this rank is, including itself, ascending.
  const std::vector<int>& proxied_ranks() const { return proxied_ranks_; }

 private:
  struct Position {
    int host = 0;
    int local = 0;
  };
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  std::vector<std::vector<int>> hosts_;
  std::vector<Position> places_;  // By rank.
  int rank_;
  std::vector<int> proxied_ranks_;
};

}  // namespace sherd::exchange
