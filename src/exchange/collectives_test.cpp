// SPDX-License-Identifier: Apache-2.0
#include "world/collectives.h"

#include <gmock/gmock.h>
#include <torch/torch.h>
#include "support/fake_ranks.h"

namespace sherd::exchange {
namespace {

using test::FakeRank;
using test::run_fake_ranks;

constexpr auto kDelay = std::chrono::microseconds(300);

// Other numbers on each rank, whose sums depend on their order. Without sin():
// where several threads are the first in a process to call MKL's, its last bits
// may differ from those of later calls.
at::Tensor uneven(std::int64_t numel, int rank, at::ScalarType dtype) {
  return torch::remainder(torch::arange(numel) * 0.37 + rank, 1.3)
      .mul(std::pow(10.0, rank))
      .to(dtype);
}

// In the order of ranks, in fp32.
at::Tensor mean_of(
    std::int64_t numel, const std::vector<int>& ranks, at::ScalarType dtype) {
  auto sum = uneven(numel, ranks.front(), dtype).to(at::kFloat);
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    sum = sum + uneven(numel, ranks[i], dtype).to(at::kFloat);
  }
  return (sum * (1.0F / static_cast<float>(ranks.size()))).to(dtype);
}

// At once and in slices, that of one rank shorter than others.
TEST(Collectives, AllReduceAddsInTheOrderOfMembers) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::uint64_t seed : {1U, 2U}) {
      run_fake_ranks(
          ranks, {.seed = seed, .delay_max = kDelay}, [&](FakeRank& self) {
            auto transport = self.network.transport(self.rank, "a");
            std::vector<int> all(static_cast<std::size_t>(ranks));
            std::iota(all.begin(), all.end(), 0);
            world::Collectives group(*transport, all, "numbers", 0);
            EXPECT_EQ(group.index(), self.rank);
            EXPECT_EQ(group.size(), ranks);
            for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
              for (const std::int64_t numel : {0, 1, 3, 4000, 40'001}) {
                auto tensor = uneven(numel, self.rank, dtype);
                group.all_reduce(tensor, 1.0 / ranks).throw_if_failed();
                EXPECT_TRUE(at::equal(tensor, mean_of(numel, all, dtype)))
                    << ranks << " ranks, " << dtype << ", " << numel;
              }
            }
            self.barrier.arrive_and_wait();
          });
    }
  }
}

TEST(Collectives, ReduceScatterGivesEachMemberItsPart) {
  for (const int ranks : {1, 3}) {
    const FakeOptions late{.seed = 5, .delay_max = kDelay};
    run_fake_ranks(ranks, late, [&](FakeRank& self) {
      auto transport = self.network.transport(self.rank, "a");
      std::vector<int> all(static_cast<std::size_t>(ranks));
      std::iota(all.begin(), all.end(), 0);
      // The second of three has nothing.
      std::vector<std::int64_t> cuts(all.size() + 1, 7);
      cuts.front() = 0;
      cuts.back() = 9001;
      const auto r = static_cast<std::size_t>(self.rank);
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        auto expected = uneven(9001, self.rank, dtype);
        const auto part = [&](const at::Tensor& of) {
          return of.narrow(0, cuts[r], cuts[r + 1] - cuts[r]);
        };
        auto tensor = expected.clone();
        part(expected).copy_(part(mean_of(9001, all, dtype)));
        world::Collectives(*transport, "parts", 0)
            .reduce_scatter(tensor, cuts, 1.0 / ranks)
            .throw_if_failed();
        EXPECT_TRUE(at::equal(tensor, expected))
            << ranks << " ranks, " << dtype;
      }
      self.barrier.arrive_and_wait();
    });
  }
}

TEST(Collectives, SomeRanksLeaveOthersAlone) {
  run_fake_ranks(4, {.seed = 3, .delay_max = kDelay}, [](FakeRank& self) {
    auto transport = self.network.transport(self.rank, "a");
    const std::vector<int> mine =
        self.rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    for (const std::int64_t numel : {5, 20'000}) {
      auto tensor = uneven(numel, self.rank, at::kFloat);
      world::Collectives(*transport, mine, "half", 0)
          .all_reduce(tensor, 0.5)
          .throw_if_failed();
      EXPECT_TRUE(at::equal(tensor, mean_of(numel, mine, at::kFloat)));
    }
    self.barrier.arrive_and_wait();
  });
}

TEST(Collectives, GathersByMember) {
  run_fake_ranks(3, {.seed = 4, .delay_max = kDelay}, [](FakeRank& self) {
    auto transport = self.network.transport(self.rank, "a");
    const auto all = world::Collectives(*transport, {0, 1, 2}, "all", 0)
                         .all_gather(torch::full({2}, self.rank));
    all.status().throw_if_failed();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(at::equal(
          all.value()[static_cast<std::size_t>(rank)], torch::full({2}, rank)));
    }
    self.barrier.arrive_and_wait();
  });
}

TEST(Collectives, ALostRankIsAFailureOfTheOthers) {
  FakeNetwork network(3, {.lost_rank = 2, .lost_at = 3});
  run_fake_ranks(3, network, [](FakeRank& self) {
    auto transport = self.network.transport(self.rank, "a");
    world::Collectives group(*transport, {0, 1, 2}, "gradients of bucket 7", 0);
    auto status = Status();
    for (int round = 0; round < 3 && status.ok(); ++round) {
      status = group.all_reduce(torch::ones({20'000}), 1.0);
    }
    EXPECT_FALSE(status.ok());
    if (self.rank != 2) {
      EXPECT_THAT(status.message(), ::testing::HasSubstr("rank 2"));
      EXPECT_THAT(status.message(), ::testing::HasSubstr("bucket 7"));
    }
  });
}

}  // namespace
}  // namespace sherd::exchange
