// SPDX-License-Identifier: Apache-2.0
#include "optim/slice_set.h"

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/optimizer_twin.h"

namespace sherd::optim {
namespace {

using sherd::testing::OptimizerTwin;
using sherd::testing::SliceMemory;
using ::testing::ElementsAre;

const std::vector<std::string> kNames = {"a.weight", "a.bias", "b.weight"};
const std::vector<std::int64_t> kSizes = {20, 16, 5};

std::vector<std::int64_t> lengths(const SliceSet::Batch& batch) {
  std::vector<std::int64_t> result;
  for (const auto& parameter : batch.parameters) {
    result.push_back(parameter.numel());
  }
  return result;
}

TEST(SliceSet, AFlatIsOneRunPaddingIncluded) {
  OptimizerTwin twin(kNames, kSizes, SliceMemory::kAligned, 1);
  SliceSet set(twin.slices, {.state_tensors = 2, .counts_updates = true});
  twin.set_gradients(/*missing=*/0.0);

  const auto batches = set.begin_update();

  ASSERT_EQ(batches.size(), 1U);
  EXPECT_THAT(lengths(batches[0]), ElementsAre(32 + 16 + 5));
  EXPECT_EQ(batches[0].states.at(1).at(0).numel(), 32 + 16 + 5);
  EXPECT_EQ(batches[0].steps.at(0).item<float>(), 1.0F);
}

TEST(SliceSet, DoesNotRunOverWhatIsNotZero) {
  OptimizerTwin twin(kNames, kSizes, SliceMemory::kDirtyGaps, 1);
  SliceSet set(twin.slices, {.state_tensors = 1});
  twin.set_gradients(/*missing=*/0.0);

  const auto batches = set.begin_update();

  // All neighbours have a gap between them, except a.bias (64 bytes) and b.weight.
  EXPECT_THAT(lengths(batches.at(0)), ElementsAre(20, 16 + 5));
}

TEST(SliceSet, MayBeToldToLeavePaddingAlone) {
  OptimizerTwin twin(kNames, kSizes, SliceMemory::kAligned, 1);
  SliceSet set(twin.slices, {.joins_over_padding = false});
  twin.set_gradients(/*missing=*/0.0);
  EXPECT_THAT(lengths(set.begin_update().at(0)), ElementsAre(20, 16 + 5));
}

TEST(SliceSet, EachGroupIsABatchAndTheFirstMatchWins) {
  OptimizerTwin twin(kNames, kSizes, SliceMemory::kTight, 1);
  SliceSet set(
      twin.slices,
      {.weight_decay = 0.5,
       .groups = {
           {.names = {"nothing", "*.bias"}, .weight_decay = 0.0},
           {.names = {"a.*"}, .learning_rate_scale = 3.0}}});
  twin.set_gradients(/*missing=*/0.0);

  const auto batches = set.begin_update();

  ASSERT_EQ(batches.size(), 3U);
  EXPECT_THAT(lengths(batches[0]), ElementsAre(20));
  EXPECT_EQ(batches[0].learning_rate_scale, 3.0);
  EXPECT_EQ(batches[0].weight_decay, 0.5);
  EXPECT_THAT(lengths(batches[1]), ElementsAre(16));
  EXPECT_EQ(batches[1].learning_rate_scale, 1.0);
  EXPECT_EQ(batches[1].weight_decay, 0.0);
  EXPECT_THAT(lengths(batches[2]), ElementsAre(5));
}

TEST(SliceSet, ASliceThatFellBehindRunsAlone) {
  OptimizerTwin twin(kNames, kSizes, SliceMemory::kTight, 1);
  SliceSet set(twin.slices, {.state_tensors = 1, .counts_updates = true});
  twin.set_gradients(/*missing=*/0.0);
  twin.slices.items[0].slice.mutable_grad().reset();
  EXPECT_THAT(lengths(set.begin_update().at(0)), ElementsAre(16 + 5));
  set.end_update();
  twin.set_gradients(/*missing=*/0.0);
  EXPECT_THAT(lengths(set.begin_update().at(0)), ElementsAre(20, 16 + 5));
}

TEST(SliceSet, OrderOfMemoryCountsNotOrderOfNames) {
  OptimizerTwin twin(kNames, kSizes, SliceMemory::kTight, 1);
  std::swap(twin.slices.items[0], twin.slices.items[2]);
  SliceSet set(twin.slices, {.state_tensors = 1});
  twin.slices.items[1].slice.mutable_grad() = torch::ones({16});
  (void)set.begin_update();
  set.end_update();
  EXPECT_THAT(set.names(), ElementsAre("b.weight", "a.bias", "a.weight"));
  EXPECT_EQ(set.state("a.weight", 0).numel(), 20);
  EXPECT_EQ(
      set.state("a.weight", 0).storage().data(),
      set.state("b.weight", 0).storage().data());
}

TEST(SliceSet, FrozenMemoryCostsNoState) {
  OptimizerTwin trained({"a"}, {20}, SliceMemory::kApart, 1);
  OptimizerTwin frozen({"b"}, {20}, SliceMemory::kApart, 1);
  NamedParameters both;
  both.items = {trained.slices.items[0], frozen.slices.items[0]};
  SliceSet set(both, {.state_tensors = 2});
  trained.set_gradients(/*missing=*/0.0);
  const auto batches = set.begin_update();
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_THAT(lengths(batches[0]), ElementsAre(20));
  EXPECT_EQ(batches[0].states.at(0).at(0).storage().nbytes(), 20U * 4U);
}

}  // namespace
}  // namespace sherd::optim
