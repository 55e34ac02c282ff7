// SPDX-License-Identifier: Apache-2.0
//
// FakeNetwork connects ranks that are threads of one process, for tests: no
// sockets, every message may be delayed, messages of different (peer, tag)
// overtake each other, and a rank can be lost at its n-th operation. How late a
// message is follows from the seed and its number in its lane; which rank is
// lost where, from its own calls: neither from the machine's load.
//
// As over comm, a rank that is lost ends every wait of every rank; one that
// gives up fails those who wait for it and takes messages under way with it;
// one that destroys its transport fails only who waits for what it never sent.
// Errors name what went wrong first.
// Thread rule: the network any thread; a transport one thread. Links may outlive
// their network.
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
  // A message is delivered this late at most, drawn from the seed.
  std::chrono::microseconds delay_max{0};
  // A wait this long fails.
  std::chrono::milliseconds deadline{10'000};
  // Rank and number of its send or receive (from 0) at which it is lost;
  // -1: never.
  int lost_rank = -1;
  std::int64_t lost_at = 0;
};

class FakeNetwork {
 public:
  FakeNetwork(int ranks, const FakeOptions& options);
  ~FakeNetwork();
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  // Every rank makes its own, under the same name. Of all ranks, or of some
  // (ascending), who are told apart by name from other such groups.
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

  // Sends and receives the rank has started so far.
  std::int64_t operations(int rank) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace sherd::exchange
