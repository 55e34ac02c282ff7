// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/backend.h"

#include <array>
#include <cstring>
#include <gmock/gmock.h>
#include "c10d_shm/testing.h"

namespace sherd::c10d_shm {
namespace {

using namespace std::chrono_literals;
using test::BackendRank;
using test::Rank;
using test::run_backend_ranks;

// No element, one, less than a cache line per rank, and several buffers.
constexpr std::array<std::int64_t, 5> kSizes = {0, 1, 13, 5000, 150001};
constexpr std::array kTypes = {torch::kFloat32, torch::kBFloat16};

// Small whole numbers, whose sum has the same bits in any order.
torch::Tensor numbers(int rank, std::int64_t size, c10::ScalarType dtype) {
  return (torch::arange(size, torch::kInt64) * (rank + 3))
      .remainder(17)
      .sub(8)
      .to(dtype);
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  const auto x = a.contiguous();
  const auto y = b.contiguous();
  return x.nbytes() == y.nbytes() &&
      (x.nbytes() == 0 ||
       std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0);
}

// Runs over every size, dtype, path and number of ranks.
void over_everything(
    const std::function<void(BackendRank&, std::int64_t size, c10::ScalarType)>&
        body) {
  for (const int ranks : test::kWorlds) {
    for (const auto& communicator : test::all_transfer_paths()) {
      test::expect_all_ok(run_backend_ranks(
          ranks, {.communicator = communicator},
          [&](BackendRank& ranked, Rank&) {
            for (const auto size : kSizes) {
              for (const auto dtype : kTypes) {
                SCOPED_TRACE(
                    str(ranks, " ranks, ", size, " of ", c10::toString(dtype)));
                body(ranked, size, dtype);
              }
            }
          }));
    }
  }
}

std::vector<torch::Tensor> empty_list(
    const BackendRank& ranked, std::int64_t size, c10::ScalarType dtype) {
  std::vector<torch::Tensor> list;
  for (int r = 0; r < ranked.ranks(); ++r) {
    list.push_back(torch::full({size}, -1, dtype));
  }
  return list;
}

TEST(ShmBackend, AllReducesAsGlooDoes) {
  over_everything(
      [](BackendRank& ranked, std::int64_t size, c10::ScalarType dtype) {
        const auto input = numbers(ranked.rank(), size, dtype);
        std::vector<torch::Tensor> ours = {input.clone()};
        std::vector<torch::Tensor> gloos = {input.clone()};
        ranked.shm().allreduce(ours, {})->wait();
        if (size > 0) {
          ranked.gloo().allreduce(gloos)->wait();
        }
        EXPECT_TRUE(same_bits(ours[0], gloos[0]));
      });
}

TEST(ShmBackend, AllGathersInRankOrder) {
  over_everything([](BackendRank& ranked, std::int64_t size,
                     c10::ScalarType dtype) {
    std::vector<torch::Tensor> input = {numbers(ranked.rank(), size, dtype)};
    std::vector<std::vector<torch::Tensor>> ours = {
        empty_list(ranked, size, dtype)};
    auto flat = torch::full({size * ranked.ranks()}, -1, dtype);
    ranked.shm().allgather(ours, input, {})->wait();
    ranked.shm()._allgather_base(flat, input[0], {})->wait();
    for (int r = 0; r < ranked.ranks(); ++r) {
      const auto expected = numbers(r, size, dtype);
      EXPECT_TRUE(same_bits(ours[0][static_cast<std::size_t>(r)], expected));
      EXPECT_TRUE(same_bits(flat.narrow(0, r * size, size), expected));
    }
  });
}

TEST(ShmBackend, ReduceScattersWhatRanksBring) {
  over_everything([](BackendRank& ranked, std::int64_t size,
                     c10::ScalarType dtype) {
    const auto ranks = ranked.ranks();
    auto input = numbers(ranked.rank(), size * ranks, dtype);
    auto list = input.chunk(ranks);
    list.resize(static_cast<std::size_t>(ranks), torch::empty({0}, dtype));
    std::vector<std::vector<torch::Tensor>> lists = {
        std::vector<torch::Tensor>(list)};
    std::vector<torch::Tensor> of_list = {torch::full({size}, -1, dtype)};
    auto of_tensor = torch::full({size}, -1, dtype);
    ranked.shm().reduce_scatter(of_list, lists, {})->wait();
    ranked.shm()._reduce_scatter_base(of_tensor, input, {})->wait();
    auto expected = torch::zeros({size}, torch::kFloat64);
    for (int r = 0; r < ranks; ++r) {
      expected +=
          numbers(r, size * ranks, dtype).narrow(0, ranked.rank() * size, size);
    }
    EXPECT_TRUE(same_bits(of_list[0], expected.to(dtype)));
    EXPECT_TRUE(same_bits(of_tensor, expected.to(dtype)));
  });
}

TEST(ShmBackend, BroadcastsFromEveryRoot) {
  over_everything([](BackendRank& ranked, std::int64_t size,
                     c10::ScalarType dtype) {
    for (int root = 0; root < ranked.ranks(); ++root) {
      std::vector<torch::Tensor> tensor = {numbers(ranked.rank(), size, dtype)};
      ranked.shm().broadcast(tensor, {.rootRank = root})->wait();
      EXPECT_TRUE(same_bits(tensor[0], numbers(root, size, dtype)));
    }
  });
}

// The bits are those of rank order in fp32, whatever the path; Gloo's order differs.
TEST(ShmBackend, SumsInRankOrderInFp32) {
  over_everything(
      [](BackendRank& ranked, std::int64_t size, c10::ScalarType dtype) {
        const auto of_rank = [&](int r) {
          torch::manual_seed(r);
          return torch::randn({size}).to(dtype);
        };
        std::vector<torch::Tensor> tensor = {of_rank(ranked.rank())};
        auto expected = of_rank(0).to(torch::kFloat32);
        for (int r = 1; r < ranked.ranks(); ++r) {
          expected += of_rank(r).to(torch::kFloat32);
        }
        ranked.shm().allreduce(tensor, {})->wait();
        EXPECT_TRUE(same_bits(tensor[0], expected.to(dtype)));
      });
}

TEST(ShmBackend, BarrierHoldsUntilAllHaveCome) {
  for (const int ranks : test::kWorlds) {
    test::expect_all_ok(
        run_backend_ranks(ranks, {}, [](BackendRank& ranked, Rank&) {
          for (int round = 0; round < 20; ++round) {
            EXPECT_TRUE(ranked.shm().barrier({})->wait());
          }
        }));
  }
}

}  // namespace
}  // namespace sherd::c10d_shm
