// SPDX-License-Identifier: Apache-2.0
#include <sherd/fsdp/gather_hook.h>

#include <limits>

#include <gmock/gmock.h>
#include <torch/torch.h>
#include "support/error_of.h"

namespace sherd {
namespace {

at::Tensor through(
    GatherHook& hook, const at::Tensor& shard, at::ScalarType dtype) {
  const auto sent =
      torch::zeros({hook.sent_bytes(shard.numel(), dtype)}, torch::kByte);
  hook.pre_gather({}, shard, dtype, sent);
  const auto part = torch::zeros({shard.numel()}, dtype);
  hook.post_gather({}, sent, part);
  return part;
}

at::Tensor uneven_values(std::int64_t numel) {
  return (torch::arange(numel) * 0.731).remainder(2.3).sub(1.1) *
      torch::pow(10.0, torch::arange(numel).remainder(3));
}

TEST(GatherHooks, ByDefaultShardsAreCast) {
  struct Plain final : GatherHook {
    std::string name() const override { return "plain"; }
  } plain;
  const auto shard = uneven_values(70'001);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    EXPECT_EQ(
        plain.sent_bytes(10, dtype),
        10 * static_cast<std::int64_t>(c10::elementSize(dtype)));
    EXPECT_TRUE(torch::equal(through(plain, shard, dtype), shard.to(dtype)));
  }
}

TEST(QuantiseGathers, EachElementIsOffByHalfAScaleAtMost) {
  for (const std::int64_t block : {1, 7, 256, 50'000}) {
    const auto hook = quantise_gathers({.block = block});
    for (const std::int64_t numel : {1, 255, 256, 257, 70'001}) {
      SCOPED_TRACE(hook->name() + ", " + std::to_string(numel));
      EXPECT_EQ(
          hook->sent_bytes(numel, at::kFloat),
          numel + 4 * ((numel + block - 1) / block));
      const auto shard = uneven_values(numel);
      const auto found = through(*hook, shard, at::kFloat);
      for (std::int64_t begin = 0; begin < numel; begin += block) {
        const auto count = std::min(block, numel - begin);
        const auto expected = shard.narrow(0, begin, count);
        const double scale = expected.abs().max().item<double>() / 127;
        const double error = (found.narrow(0, begin, count) - expected)
                                 .abs()
                                 .max()
                                 .item<double>();
        ASSERT_LE(error, scale * 0.50001) << "block at " << begin;
      }
    }
  }
}

TEST(QuantiseGathers, WholeUnitsHaveTheirDtype) {
  const auto hook = quantise_gathers();
  const auto shard = uneven_values(1000);
  EXPECT_TRUE(torch::equal(
      through(*hook, shard, at::kBFloat16),
      through(*hook, shard, at::kFloat).to(at::kBFloat16)));
  EXPECT_TRUE(torch::equal(
      through(*hook, shard.to(at::kDouble), at::kFloat),
      through(*hook, shard, at::kFloat)));
}

TEST(QuantiseGathers, IntegersTravelAsTheyAre) {
  const auto hook = quantise_gathers();
  const auto shard = torch::arange(1000, torch::kLong);
  EXPECT_EQ(hook->sent_bytes(1000, at::kLong), 8000);
  EXPECT_TRUE(torch::equal(through(*hook, shard, at::kLong), shard));
}

TEST(QuantiseGathers, ZerosStayAndWhatIsNotFiniteIsSeen) {
  const auto hook = quantise_gathers({.block = 4});
  auto shard = torch::zeros({12});
  EXPECT_TRUE(torch::equal(through(*hook, shard, at::kFloat), shard));
  shard[5] = std::numeric_limits<float>::infinity();
  shard[9] = std::numeric_limits<float>::quiet_NaN();
  const auto found = through(*hook, shard, at::kFloat);
  EXPECT_TRUE(found.narrow(0, 4, 8).isnan().all().item<bool>());
  EXPECT_TRUE(found.narrow(0, 0, 4).eq(0).all().item<bool>());
  EXPECT_THAT(
      test::error_of([] { (void)quantise_gathers({.block = 0}); }),
      testing::HasSubstr("found 0"));
}

}  // namespace
}  // namespace sherd
