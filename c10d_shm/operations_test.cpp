// SPDX-License-Identifier: Apache-2.0
//
// What c10d has in addition to the common four: gather, scatter, reduce, all-to-all, coalesced
// calls, every dtype and reduce operation, tensors with gaps, groups of groups.
#include <array>
#include <gmock/gmock.h>
#include "c10d_shm/backend.h"
#include "c10d_shm/testing.h"

namespace sherd::c10d_shm {
namespace {

using c10d::ReduceOp;
using test::BackendRank;
using test::Rank;
using test::run_backend_ranks;

constexpr std::array<std::int64_t, 3> kOperandSizes = {0, 13, 30'001};

torch::Tensor numbers(int rank, std::int64_t size) {
  return torch::arange(size, torch::kFloat32).remainder(19) + rank * 20;
}

void over_worlds(const std::function<void(BackendRank&, std::int64_t)>& body) {
  for (const int ranks : test::kWorlds) {
    for (const auto& communicator : test::all_transfer_paths()) {
      test::expect_all_ok(run_backend_ranks(
          ranks, {.communicator = communicator},
          [&](BackendRank& ranked, Rank&) {
            for (const auto size : kOperandSizes) {
              SCOPED_TRACE(str(ranks, " ranks, ", size));
              body(ranked, size);
            }
          }));
    }
  }
}

TEST(ShmOperations, GatherAndScatter) {
  over_worlds([](BackendRank& ranked, std::int64_t size) {
    const int root = ranked.ranks() - 1;
    std::vector<torch::Tensor> own = {numbers(ranked.rank(), size)};
    std::vector<torch::Tensor> back = {torch::full({size}, -1.0F)};
    std::vector<std::vector<torch::Tensor>> lists;
    if (ranked.rank() == root) {
      lists.emplace_back();
      for (int r = 0; r < ranked.ranks(); ++r) {
        lists[0].push_back(torch::full({size}, -1.0F));
      }
    }
    ranked.shm().gather(lists, own, {.rootRank = root})->wait();
    for (int r = 0; r < ranked.ranks() && ranked.rank() == root; ++r) {
      EXPECT_TRUE(lists[0][index(r)].equal(numbers(r, size)));
    }
    ranked.shm().scatter(back, lists, {.rootRank = root})->wait();
    EXPECT_TRUE(back[0].equal(own[0]));
  });
}

TEST(ShmOperations, ReduceLeavesOtherRanksAlone) {
  over_worlds([](BackendRank& ranked, std::int64_t size) {
    const int root = ranked.ranks() / 2;
    std::vector<torch::Tensor> tensor = {numbers(ranked.rank(), size)};
    c10d::ReduceOptions options;
    options.rootRank = root;
    ranked.shm().reduce(tensor, options)->wait();
    auto expected = torch::zeros({size});
    for (int r = 0; r < ranked.ranks(); ++r) {
      expected += numbers(r, size);
    }
    EXPECT_TRUE(tensor[0].equal(
        ranked.rank() == root ? expected : numbers(ranked.rank(), size)));
  });
}

TEST(ShmOperations, AllToAllEqualAndRagged) {
  over_worlds([](BackendRank& ranked, std::int64_t size) {
    const int ranks = ranked.ranks();
    std::vector<torch::Tensor> in;
    std::vector<torch::Tensor> out;
    std::vector<std::int64_t> in_rows;
    std::vector<std::int64_t> out_rows;
    // Rank s has s + d + 1 rows for d.
    const auto piece = [&](int s, int d) {
      return numbers(10 * s + d, (size / 3 + s + d) * 2).view({-1, 2});
    };
    for (int r = 0; r < ranks; ++r) {
      in.push_back(piece(ranked.rank(), r));
      out.push_back(torch::full_like(piece(r, ranked.rank()), -1));
      in_rows.push_back(in.back().size(0));
      out_rows.push_back(out.back().size(0));
    }
    auto flat_in = torch::cat(in);
    auto flat_out = torch::full_like(torch::cat(out), -1);
    ranked.shm().alltoall(out, in, {})->wait();
    ranked.shm()
        .alltoall_base(flat_out, flat_in, out_rows, in_rows, {})
        ->wait();
    const auto split = flat_out.split_with_sizes(out_rows);
    for (int r = 0; r < ranks; ++r) {
      EXPECT_TRUE(out[index(r)].equal(piece(r, ranked.rank())));
      EXPECT_TRUE(split[index(r)].equal(piece(r, ranked.rank())));
    }
  });
}

TEST(ShmOperations, CoalescedOnesAreManyInOne) {
  over_worlds([](BackendRank& ranked, std::int64_t size) {
    const int ranks = ranked.ranks();
    std::vector<torch::Tensor> own = {
        numbers(ranked.rank(), size), numbers(ranked.rank() + 50, 5)};
    std::vector<torch::Tensor> wholes = {
        torch::empty({size * ranks}), torch::empty({5L * ranks})};
    ranked.shm().allgather_into_tensor_coalesced(wholes, own, {})->wait();
    std::vector<std::vector<torch::Tensor>> lists;
    for (int r = 0; r < ranks; ++r) {
      lists.push_back({torch::empty({size}), torch::empty({5})});
    }
    ranked.shm().allgather_coalesced(lists, own, {})->wait();
    std::vector<torch::Tensor> parts = {
        torch::empty({size}), torch::empty({5})};
    ranked.shm().reduce_scatter_tensor_coalesced(parts, wholes, {})->wait();
    std::vector<torch::Tensor> sums = {own[0].clone(), own[1].clone()};
    ranked.shm().allreduce_coalesced(sums, {})->wait();
    auto sum = torch::zeros({size});
    for (int r = 0; r < ranks; ++r) {
      EXPECT_TRUE(wholes[0].narrow(0, r * size, size).equal(numbers(r, size)));
      EXPECT_TRUE(lists[index(r)][1].equal(numbers(r + 50, 5)));
      sum += numbers(r, size);
    }
    EXPECT_TRUE(parts[0].equal(numbers(ranked.rank(), size) * ranks));
    EXPECT_TRUE(sums[0].equal(sum));
  });
}

TEST(ShmOperations, TensorsWithGapsKeepTheirStrides) {
  test::expect_all_ok(run_backend_ranks(3, {}, [](BackendRank& ranked, Rank&) {
    const auto values = torch::arange(12.0F).view({3, 4});
    auto tensor = torch::full({4, 6}, 7.0F);
    auto view = tensor.narrow(1, 0, 3).t();  // 3 by 4, every second column.
    view.copy_(values + ranked.rank());
    std::vector<torch::Tensor> tensors = {view};
    ranked.shm().allreduce(tensors, {})->wait();
    EXPECT_TRUE(view.equal(values * 3 + 3));
    EXPECT_TRUE(tensor.narrow(1, 3, 3).eq(7).all().item<bool>());
    std::vector<std::vector<torch::Tensor>> outputs(1);
    for (int r = 0; r < 3; ++r) {
      outputs[0].push_back(torch::empty({4, 3}).t());
    }
    std::vector<torch::Tensor> inputs = {(values + ranked.rank()).t().t()};
    ranked.shm().allgather(outputs, inputs, {})->wait();
    EXPECT_TRUE(outputs[0][2].equal(values + 2));
  }));
}

// The expected results come from LibTorch's operators on the same values.
TEST(ShmOperations, EveryDtypeAndOperation) {
  using Combine =
      std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)>;
  const std::vector<std::pair<ReduceOp::RedOpType, Combine>> all = {
      {ReduceOp::SUM, [](auto& a, auto& b) { return a + b; }},
      {ReduceOp::PRODUCT, [](auto& a, auto& b) { return a * b; }},
      {ReduceOp::MIN, [](auto& a, auto& b) { return torch::minimum(a, b); }},
      {ReduceOp::MAX, [](auto& a, auto& b) { return torch::maximum(a, b); }},
      {ReduceOp::BAND, [](auto& a, auto& b) { return a.bitwise_and(b); }},
      {ReduceOp::BOR, [](auto& a, auto& b) { return a.bitwise_or(b); }},
      {ReduceOp::BXOR, [](auto& a, auto& b) { return a.bitwise_xor(b); }}};
  test::expect_all_ok(run_backend_ranks(3, {}, [&](BackendRank& ranked, Rank&) {
    for (const auto dtype :
         {torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32,
          torch::kInt64, torch::kBool, torch::kFloat16, torch::kBFloat16,
          torch::kFloat32, torch::kFloat64}) {
      const auto value = [&](int r) {
        return (torch::arange(40) * (r + 1) % 7).to(dtype);
      };
      for (const auto& [op, combine] : all) {
        SCOPED_TRACE(str(c10::toString(dtype), " ", static_cast<int>(op)));
        if (op >= ReduceOp::BAND && c10::isFloatingType(dtype)) {
          continue;
        }
        std::vector<torch::Tensor> tensor = {value(ranked.rank())};
        c10d::AllreduceOptions options;
        options.reduceOp = op;
        ranked.shm().allreduce(tensor, options)->wait();
        const auto expected =
            combine(combine(value(0), value(1)), value(2)).to(dtype);
        EXPECT_TRUE(tensor[0].equal(expected));
      }
    }
  }));
}

TEST(ShmOperations, MeansAndFactorsAndComplexNumbers) {
  test::expect_all_ok(run_backend_ranks(3, {}, [](BackendRank& ranked, Rank&) {
    for (const auto dtype :
         {torch::kFloat16, torch::kBFloat16, torch::kFloat32,
          torch::kFloat64}) {
      std::vector<torch::Tensor> mean = {
          torch::full({5}, 3.0 * ranked.rank(), dtype)};
      c10d::AllreduceOptions options;
      options.reduceOp = ReduceOp::AVG;
      ranked.shm().allreduce(mean, options)->wait();
      EXPECT_TRUE(mean[0].equal(torch::full({5}, 3.0, dtype)));
      std::vector<torch::Tensor> scaled = {
          torch::full({5}, 3.0 * ranked.rank(), dtype)};
      options.reduceOp = test::premul_sum(0.5);
      ranked.shm().allreduce(scaled, options)->wait();
      EXPECT_TRUE(scaled[0].equal(torch::full({5}, 4.5, dtype)));
    }
    std::vector<torch::Tensor> sum = {torch::complex(
        torch::full({5}, 1.0F),
        torch::full({5}, 1.0 * ranked.rank(), torch::kFloat32))};
    ranked.shm().allreduce(sum, {})->wait();
    EXPECT_TRUE(torch::real(sum[0]).equal(torch::full({5}, 3.0F)));
    EXPECT_TRUE(torch::imag(sum[0]).equal(torch::full({5}, 3.0F)));
  }));
}

TEST(ShmOperations, ASplitGroupIsOneOfItsOwn) {
  test::expect_all_ok(run_backend_ranks(4, {}, [](BackendRank& ranked, Rank&) {
    const std::vector<int> members = {3, 1};
    const auto half =
        ranked.shm().split(ranked.prefixed("half"), members, nullptr);
    EXPECT_EQ(half == nullptr, ranked.rank() % 2 == 0);
    if (half != nullptr) {
      EXPECT_EQ(half->getRank(), ranked.rank() == 3 ? 0 : 1);
      std::vector<torch::Tensor> sum = {
          torch::full({3}, 1.0 + ranked.rank(), torch::kFloat32)};
      half->allreduce(sum)->wait();
      EXPECT_TRUE(sum[0].equal(torch::full({3}, 6.0F)));
    }
    ranked.shm().barrier({})->wait();
  }));
}

TEST(ShmOperations, AFutureBringsTheResult) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    std::vector<torch::Tensor> tensor = {torch::ones({3})};
    auto next = torch::zeros({3});
    const auto work = ranked.shm().allreduce(tensor, {});
    // A callback may issue another operation and wait for it.
    const auto after = work->getFuture()->then(
        [&](c10::ivalue::Future& done) {
          std::vector<torch::Tensor> more = {
              done.value().toTensorVector()[0] + 1};
          ranked.shm().allreduce(more, {})->wait();
          next.copy_(more[0]);
          return c10::IValue();
        },
        c10::NoneType::get());
    after->wait();
    EXPECT_TRUE(next.equal(torch::full({3}, 6.0F)));
  }));
}

}  // namespace
}  // namespace sherd::c10d_shm
