// SPDX-License-Identifier: Apache-2.0
//
// FakeNetwork connects ranks that are threads of one process, for tests. There are no sockets;
// every message may be delayed, messages of different (peer, tag) may overtake each other, and a
// rank can be lost at its n-th operation. The delay of a message follows from the seed and its
// number among those of its peer and tag; where a rank is lost follows from its own calls. Neither
// depends on the load of the machine.
//
// As over world's transports, a rank that is lost ends every wait of every rank. A rank that gives
// up fails those who wait for it, and its messages in flight are lost. A rank that destroys its
// transport fails only those who wait for what it never sent. Errors name what went wrong first.
//
// Thread rule: the network any thread; a transport one thread. Transports may outlive their
// network.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "exchange/exchange.h"
#include "world/transport.h"

namespace sherd::exchange {

struct FakeOptions {
  std::uint64_t seed = 0;
  // The largest delay of a message; the delay is drawn from the seed.
  std::chrono::microseconds delay_max{0};
  // A wait that takes this long fails.
  std::chrono::milliseconds deadline{10'000};
  // The rank that is lost, and the number (from 0) of its send or receive at which that happens.
  // -1: none.
  int lost_rank = -1;
  std::int64_t lost_at = 0;
};

class FakeNetwork {
 public:
  FakeNetwork(int ranks, const FakeOptions& options);
  ~FakeNetwork();
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  // Every rank makes its own, under the same name. It connects all ranks, or some (ascending);
  // groups of some ranks are distinguished by name.
  std::shared_ptr<world::Transport> transport(
      int rank, const std::string& name);
  std::shared_ptr<world::Transport> transport(
      int rank, const std::string& name, std::vector<int> ranks);

  // The fake exchange: the collective protocol over this network.
  std::unique_ptr<Exchange> exchange(int rank);
  std::unique_ptr<Exchange> exchange(
      int rank, const std::string& name, const std::vector<int>& ranks);

  // The rank is lost now, as if its process had been killed.
  void lose(int rank);

  // The number of sends and receives that the rank has started so far.
  std::int64_t operations(int rank) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace sherd::exchange
