// SPDX-License-Identifier: Apache-2.0
#include "fsdp/clip_gradients.h"

#include <cmath>
#include <limits>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <torch/torch.h>

namespace sherd::fsdp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Leaves with given gradients; an undefined one is a leaf without.
std::vector<at::Tensor> leaves_with(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> leaves;
  for (const auto& gradient : gradients) {
    leaves.push_back(torch::zeros({gradient.defined() ? gradient.numel() : 3}));
    leaves.back().set_requires_grad(true);
    if (gradient.defined()) {
      leaves.back().mutable_grad() = gradient.clone();
    }
  }
  return leaves;
}

void alone(const at::Tensor&) {}

TEST(Clip, EqualsLibTorchForEveryNorm) {
  torch::manual_seed(1);
  const std::vector<at::Tensor> gradients{
      torch::randn({50}), at::Tensor(), torch::randn({1}), torch::randn({333})};
  for (const double p : {1.0, 2.0, 3.5, 0.5, kInfinity}) {
    for (const double max_norm : {0.0, 0.1, 5.0, 1e6}) {
      auto ours = leaves_with(gradients);
      auto theirs = leaves_with(gradients);
      const double norm = clip_gradients(ours, max_norm, {.p = p}, alone);
      const double expected =
          torch::nn::utils::clip_grad_norm_(theirs, max_norm, p);
      EXPECT_NEAR(norm, expected, 1e-5 * expected) << "p " << p;
      for (std::size_t i = 0; i < ours.size(); ++i) {
        ASSERT_EQ(ours[i].grad().defined(), theirs[i].grad().defined());
        if (ours[i].grad().defined()) {
          EXPECT_TRUE(
              torch::allclose(ours[i].grad(), theirs[i].grad(), 1e-5, 1e-7))
              << "p " << p << ", max_norm " << max_norm;
        }
      }
    }
  }
}

TEST(Clip, TheNormIsOverAllRanks) {
  auto leaves = leaves_with({torch::full({1}, 3.0F)});
  const double norm =
      clip_gradients(leaves, 1.0, {}, [](const at::Tensor& sum) {
        EXPECT_EQ(sum.scalar_type(), torch::kDouble);
        EXPECT_EQ(sum.item<double>(), 9);
        at::Tensor(sum).add_(16);  // Another rank's.
      });
  EXPECT_DOUBLE_EQ(norm, 5);
  EXPECT_NEAR(leaves[0].grad().item<double>(), 3.0 / 5, 1e-6);
}

TEST(Clip, InfinityCombinesTheLargest) {
  auto leaves = leaves_with({torch::tensor({-3.0F, 2.0F})});
  const double norm = clip_gradients(
      leaves, 100.0, {.p = kInfinity},
      [](const at::Tensor& largest) { EXPECT_EQ(largest.item<double>(), 3); });
  EXPECT_EQ(norm, 3);
  EXPECT_EQ(leaves[0].grad()[0].item<double>(), -3);  // Below: untouched.
}

TEST(Clip, ANanReachesNormAndGradients) {
  for (const double p : {2.0, kInfinity}) {
    auto leaves = leaves_with(
        {torch::ones({2}), torch::tensor({std::nanf("")}), torch::ones({2})});
    EXPECT_TRUE(std::isnan(clip_gradients(leaves, 1.0, {.p = p}, alone)));
    EXPECT_TRUE(leaves[0].grad().isnan().all().item<bool>());
  }
}

TEST(Clip, ANonFiniteNormIsRefusedOnRequestAndChangesNothing) {
  auto leaves =
      leaves_with({torch::tensor({1.0F}), torch::tensor({HUGE_VALF})});
  try {
    clip_gradients(leaves, 1.0, {.error_if_nonfinite = true}, alone);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  }
  EXPECT_EQ(leaves[0].grad().item<double>(), 1);
}

TEST(Clip, WithoutGradientsTheNormIsZero) {
  EXPECT_EQ(clip_gradients(leaves_with({at::Tensor()}), 1.0, {}, alone), 0);
  EXPECT_EQ(clip_gradients({}, 1.0, {.p = kInfinity}, alone), 0);
}

TEST(Clip, HalfPrecisionGradientsAreSummedWide) {
  auto leaf = torch::zeros({100'000}, torch::kBFloat16);
  leaf.set_requires_grad(true);
  leaf.mutable_grad() = torch::ones({100'000}, torch::kBFloat16);
  EXPECT_NEAR(clip_gradients({leaf}, 1e9, {}, alone), std::sqrt(1e5), 1e-3);
}

TEST(Clip, RefusesWhatMakesNoSense) {
  for (const double p : {0.0, -1.0, std::nan("")}) {
    EXPECT_THROW(clip_gradients({}, 1.0, {.p = p}, alone), Error);
  }
  for (const double max_norm : {-1.0, std::nan("")}) {
    EXPECT_THROW(clip_gradients({}, max_norm, {}, alone), Error);
  }
}

}  // namespace
}  // namespace sherd::fsdp
