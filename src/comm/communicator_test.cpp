// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"

#include <gtest/gtest.h>
#include <numeric>
#include "support/ranks.h"

namespace sherd::comm {
namespace {

using test::expect_all_ok;
using test::run_ranks;

std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

class CommunicatorSizes : public ::testing::TestWithParam<int> {};

TEST_P(CommunicatorSizes, MovesMessagesAroundTheRing) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Communicator comm(world, "ring", all_ranks(world));
    ASSERT_EQ(comm.size(), world.size());
    ASSERT_EQ(comm.index(), world.rank());
    if (comm.size() == 1) {
      return;
    }
    const int next = (comm.index() + 1) % comm.size();
    const int last = (comm.index() + comm.size() - 1) % comm.size();
    const auto mine = torch::full({1000}, comm.index(), torch::kLong);
    auto theirs = torch::zeros({1000}, torch::kLong);
    Pending out = comm.send(mine, next, 5);
    Pending in = comm.receive(theirs, last, 5);
    comm.wait(in, "ring").throw_if_failed();
    comm.wait(out, "ring").throw_if_failed();
    EXPECT_TRUE(theirs.equal(torch::full({1000}, last, torch::kLong)));
  }));
}

TEST_P(CommunicatorSizes, CollectivesGiveEveryRankTheSame) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Communicator comm(world, "c", all_ranks(world));
    const int w = world.size();
    for (const std::int64_t n : {0, 1, 5, 1000, 100003}) {
      auto t = torch::arange(n, torch::kFloat) + world.rank();
      comm.all_reduce(t, ReduceOp::kSum, "sum").throw_if_failed();
      EXPECT_TRUE(t.equal(
          torch::arange(n, torch::kFloat) * w + w * (w - 1) / 2));
    }
    auto m = torch::tensor({world.rank(), -world.rank()}, torch::kInt);
    auto l = m.clone();
    comm.all_reduce(m, ReduceOp::kMax, "max").throw_if_failed();
    comm.all_reduce(l, ReduceOp::kMin, "min").throw_if_failed();
    EXPECT_TRUE(m.equal(torch::tensor({w - 1, 0}, torch::kInt)));
    EXPECT_TRUE(l.equal(torch::tensor({0, 1 - w}, torch::kInt)));

    for (int root = 0; root < w; ++root) {
      auto b = torch::full({7}, world.rank(), torch::kInt);
      comm.broadcast(b, root, "b").throw_if_failed();
      EXPECT_TRUE(b.equal(torch::full({7}, root, torch::kInt)));
    }
    const auto all =
        comm.all_gather(std::string(world.rank() * 3, 'x'), "g").value();
    ASSERT_EQ(all.size(), static_cast<std::size_t>(w));
    for (int r = 0; r < w; ++r) {
      EXPECT_EQ(all[r], std::string(r * 3, 'x'));
    }
    world.barrier();
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, CommunicatorSizes, ::testing::Values(1, 2, 3, 4, 7));

}  // namespace
}  // namespace sherd::comm
