// SPDX-License-Identifier: Apache-2.0
//
// Ranks of a test as threads of this process over a FakeNetwork:
//
//   run_fake_ranks(3, {.seed = 7}, [](FakeRank& self) {
//     auto exchange = self.network.exchange(self.rank);
//     ...
//   });
//
// An exception of a body fails the test, unless its rank was made to be lost.
#pragma once

#include <atomic>
#include <barrier>
#include <exception>
#include <functional>
#include <thread>
#include <vector>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include "exchange/fake_transport_testing.h"

namespace sherd::test {

struct FakeRank {
  const int rank;
  exchange::FakeNetwork& network;
  std::barrier<>& barrier;  // For all ranks that have not ended.
};

using FakeBody = std::function<void(FakeRank&)>;

// Runs `body` on each rank and returns when all have ended. If `network` is given, the caller can
// inspect it afterwards.
inline void run_fake_ranks(
    int ranks, exchange::FakeNetwork& network, const FakeBody& body) {
  std::barrier<> barrier(ranks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        FakeRank self{rank, network, barrier};
        body(self);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
      barrier.arrive_and_drop();
    });
  }
}

inline void run_fake_ranks(
    int ranks, const exchange::FakeOptions& options, const FakeBody& body) {
  exchange::FakeNetwork network(ranks, options);
  run_fake_ranks(ranks, network, body);
}

}  // namespace sherd::test
