// SPDX-License-Identifier: Apache-2.0
#include "world/rank_order_sum.h"

#include <cmath>
#include <limits>
#include <vector>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <torch/torch.h>

namespace sherd::world {
namespace {

// The expected result as a plain loop: in order, in Sum, scaled, then added.
template <typename Sum>
at::Tensor plain_sum(
    const std::vector<at::Tensor>& pieces,
    double scale,
    bool accumulate,
    const at::Tensor& out) {
  const c10::ScalarType wide = c10::CppTypeToScalarType<Sum>::value;
  std::vector<at::Tensor> terms;
  for (const auto& piece : pieces) {
    terms.push_back(piece.to(wide));
  }
  at::Tensor result = out.to(wide, /*non_blocking=*/false, /*copy=*/true);
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    Sum sum = terms[0].const_data_ptr<Sum>()[i];
    for (std::size_t p = 1; p < terms.size(); ++p) {
      sum += terms[p].const_data_ptr<Sum>()[i];
    }
    sum *= static_cast<Sum>(scale);
    auto* at = result.mutable_data_ptr<Sum>() + i;
    *at = accumulate ? *at + sum : sum;
  }
  return result.to(out.scalar_type());
}

struct Case {
  c10::ScalarType pieces;
  c10::ScalarType out;
};

class SliceSum : public testing::TestWithParam<Case> {};

TEST_P(SliceSum, EqualsAPlainLoopBitForBit) {
  const auto [piece_type, out_type] = GetParam();
  torch::manual_seed(5);
  for (const int ranks : {1, 2, 3, 7}) {
    for (const std::int64_t numel : {1, 5, 300}) {
      for (const double scale : {1.0, 1.0 / 3}) {
        for (const bool accumulate : {false, true}) {
          std::vector<at::Tensor> pieces;
          for (int r = 0; r < ranks; ++r) {
            const auto magnitude = torch::rand({numel}).mul(12).exp2();
            pieces.push_back(
                torch::randn({numel}).mul(magnitude).to(piece_type));
          }
          auto out = torch::randn({numel}).to(out_type);
          const bool wide =
              piece_type == torch::kDouble || out_type == torch::kDouble;
          const auto expected = wide
              ? plain_sum<double>(pieces, scale, accumulate, out)
              : plain_sum<float>(pieces, scale, accumulate, out);
          sum_in_rank_order(pieces, scale, accumulate, out);
          EXPECT_TRUE(torch::equal(out, expected))
              << ranks << " ranks, " << numel << " elements";
        }
      }
    }
  }
}

// Large sums bypass the caches, at whatever address they begin.
TEST_P(SliceSum, LargeOnesAtAnyAddressToo) {
  const auto [piece_type, out_type] = GetParam();
  constexpr std::int64_t kNumel = (1 << 18) + 5;
  for (const std::int64_t begin : {0, 1, 2, 3}) {
    for (const bool accumulate : {false, true}) {
      const auto all =
          torch::full({kNumel + 8}, 9.0, torch::kFloat).to(out_type);
      const std::vector<at::Tensor> pieces = {
          torch::arange(kNumel).remainder(100).to(piece_type),
          torch::full({kNumel}, 3.0, torch::kFloat).to(piece_type)};
      const auto expected =
          (torch::arange(kNumel).remainder(100) + (accumulate ? 12 : 3))
              .to(out_type);
      sum_in_rank_order(pieces, 1.0, accumulate, all.narrow(0, begin, kNumel));
      EXPECT_TRUE(torch::equal(all.narrow(0, begin, kNumel), expected));
      EXPECT_EQ(all[begin + kNumel].item<float>(), 9.0F);
      if (begin > 0) {
        EXPECT_EQ(all[begin - 1].item<float>(), 9.0F);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    SliceSum,
    testing::Values(
        Case{torch::kFloat, torch::kFloat},
        Case{torch::kDouble, torch::kDouble},
        Case{torch::kBFloat16, torch::kBFloat16},
        Case{torch::kHalf, torch::kHalf},
        Case{torch::kBFloat16, torch::kFloat},
        Case{torch::kHalf, torch::kFloat},
        Case{torch::kFloat, torch::kBFloat16},
        Case{torch::kHalf, torch::kBFloat16},
        Case{torch::kBFloat16, torch::kDouble},
        Case{torch::kDouble, torch::kHalf}));

TEST(SliceSumBlocks, RoundsAsLibTorchDoes) {
  torch::manual_seed(7);
  const auto values = torch::cat(
      {torch::randn({5000}).mul(torch::rand({5000}).mul(60).sub(30).exp2()),
       torch::tensor({0.0F, -0.0F, 1e-45F, 3.4e38F, 65504.0F, 65520.0F})});
  for (const auto dtype : {torch::kBFloat16, torch::kHalf, torch::kDouble}) {
    auto out = torch::empty(values.sizes(), dtype);
    sum_in_rank_order({&values, 1}, 1.0, /*accumulate=*/false, out);
    EXPECT_TRUE(torch::equal(out, values.to(dtype))) << dtype;
  }
}

// Longer than one block and than one thread's share, with odd lengths.
TEST(SliceSumBlocks, EveryElementIsSummedOnce) {
  for (const std::int64_t numel : {2047, 2048, 2049, 65'536, 200'003}) {
    std::vector<at::Tensor> pieces;
    for (int r = 0; r < 3; ++r) {
      pieces.push_back(torch::arange(numel, torch::kInt)
                           .remainder(1000 + r)
                           .to(torch::kFloat));
    }
    auto out = torch::ones({numel});
    sum_in_rank_order(pieces, 2.0, true, out);
    EXPECT_TRUE(
        torch::equal(out, (pieces[0] + pieces[1] + pieces[2]).mul(2).add(1)));
  }
}

TEST(SliceSumBlocks, BitsDoNotDependOnTheNumberOfThreads) {
  torch::manual_seed(6);
  std::vector<at::Tensor> pieces;
  for (int r = 0; r < 4; ++r) {
    pieces.push_back(torch::randn({300'001}));
  }
  const int threads = at::get_num_threads();
  auto one = torch::zeros({300'001});
  at::set_num_threads(1);
  sum_in_rank_order(pieces, 0.3, false, one);
  auto many = torch::zeros({300'001});
  at::set_num_threads(3);
  sum_in_rank_order(pieces, 0.3, false, many);
  at::set_num_threads(threads);
  EXPECT_TRUE(torch::equal(one, many));
}

TEST(SliceSumBlocks, InfinitiesAndNansPassThrough) {
  const auto inf = std::numeric_limits<float>::infinity();
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  auto out = torch::full({3}, nan);
  sum_in_rank_order(
      std::vector<at::Tensor>{
          torch::tensor({inf, inf, 1.0F}), torch::tensor({1.0F, -inf, nan})},
      1.0, /*accumulate=*/false, out);
  EXPECT_EQ(out[0].item<float>(), inf);  // Earlier contents do not matter.
  EXPECT_TRUE(std::isnan(out[1].item<float>()));
  EXPECT_TRUE(std::isnan(out[2].item<float>()));
}

TEST(SliceSumBlocks, NothingIsNothing) {
  auto out = torch::empty({0});
  sum_in_rank_order(std::vector<at::Tensor>{torch::empty({0})}, 1.0, true, out);
  EXPECT_EQ(out.numel(), 0);
}

TEST(SliceSumBlocks, RefusesOtherTypes) {
  auto out = torch::zeros({2}, torch::kInt);
  EXPECT_THROW(
      sum_in_rank_order(
          std::vector<at::Tensor>{torch::zeros({2}, torch::kInt)}, 1.0, false,
          out),
      Error);
}

}  // namespace
}  // namespace sherd::world
