// SPDX-License-Identifier: Apache-2.0
//
// The CPU is a device whose streams are null, so that the sums and the meeting of ranks can be
// tested without a GPU.
#include "support/threads_on_device.h"

#include <functional>
#include <thread>
#include <vector>
#include <gmock/gmock.h>
#include <sherd/base/error.h>
#include <torch/torch.h>
#include "support/error_of.h"

namespace sherd::test {
namespace {

using ::testing::HasSubstr;

constexpr int kThreadRanks = 3;
const std::vector<int> kMembers = {0, 1, 2};

// Each thread's backend belongs to another communicator every time.
void on_threads(
    const std::function<void(int rank, c10d::Backend& backend)>& body,
    int ranks = kThreadRanks) {
  ThreadsOnDevice network(std::chrono::milliseconds(ranks == 3 ? 20'000 : 50));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto backend = network.backend(rank, "one", kMembers);
      body(rank, *backend);
    });
  }
}

torch::Tensor brought_by(int rank) {
  return torch::arange(6, torch::kFloat) + 10 * rank;
}

TEST(ThreadsOnDevice, GathersReducesAndBroadcasts) {
  on_threads([](int rank, c10d::Backend& backend) {
    for (int turn = 0; turn < 50; ++turn) {
      auto mine = brought_by(rank);
      auto gathered = torch::empty({18});
      backend._allgather_base(gathered, mine, {});
      EXPECT_TRUE(gathered.equal(
          torch::cat({brought_by(0), brought_by(1), brought_by(2)})));
      const auto sum = brought_by(0) + brought_by(1) + brought_by(2);
      auto part = torch::empty({2});
      backend._reduce_scatter_base(part, mine, {});
      EXPECT_TRUE(part.equal(sum.narrow(0, 2 * rank, 2)));
      std::vector<torch::Tensor> whole = {brought_by(rank)};
      backend.reduce(whole, {.rootRank = 1});
      EXPECT_TRUE(whole[0].equal(rank == 1 ? sum : brought_by(rank)));
      whole = {brought_by(rank)};
      backend.allreduce(whole, {});
      EXPECT_TRUE(whole[0].equal(sum));
      whole = {brought_by(rank)};
      backend.broadcast(whole, {.rootRank = 2});
      EXPECT_TRUE(whole[0].equal(brought_by(2)));
    }
  });
}

TEST(ThreadsOnDevice, ARankThatDoesNotComeIsAnError) {
  on_threads(
      [](int rank, c10d::Backend& backend) {
        std::vector<torch::Tensor> whole = {brought_by(rank)};
        EXPECT_THAT(
            error_of([&] { backend.allreduce(whole, {}); }),
            HasSubstr("a rank did not come in time"));
      },
      2);
}

}  // namespace
}  // namespace sherd::test
