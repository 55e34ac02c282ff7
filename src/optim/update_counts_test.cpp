// SPDX-License-Identifier: Apache-2.0
#include "optim/update_counts.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include "support/checking_device/checking_device.h"

namespace sherd::optim {
namespace {

float on(const UpdateCounts& counts, std::size_t slice) {
  return counts.for_kernel(slice).item<float>();
}

TEST(UpdateCounts, CountEachSliceOnTheCpu) {
  UpdateCounts counts({at::kCPU, at::kCPU});
  counts.count({0, 1});
  counts.count_one(1);
  EXPECT_EQ(counts.of(0), 1);
  EXPECT_EQ(on(counts, 1), 2);
  counts.on_host(0).fill_(7);
  counts.count({0});
  EXPECT_EQ(on(counts, 0), 8);
}

// Three slices, of which the second is on the CPU.
class DeviceUpdateCounts : public testing::Test {
 protected:
  // Does what a graph does that was captured in an update of the first slice.
  void replay(int times) {
    for (int i = 0; i < times; ++i) {
      counts.for_kernel(0).add_(1);
    }
  }

  const c10::Device device = test::checking_device();
  UpdateCounts counts{{device, at::kCPU, device}};
};

TEST_F(DeviceUpdateCounts, AreReadOnTheDevice) {
  counts.count({0, 1, 2});
  counts.count({0, 2});
  counts.count_one(2);
  EXPECT_EQ(counts.for_kernel(0).device(), device);
  EXPECT_TRUE(counts.for_kernel(1).is_cpu());
  EXPECT_EQ(on(counts, 0), 2);
  EXPECT_EQ(on(counts, 1), 1);
  EXPECT_EQ(on(counts, 2), 3);
  EXPECT_EQ(counts.on_host(2).item<float>(), 3);
}

TEST_F(DeviceUpdateCounts, AnUpdateLikeTheLastOneMakesTheHostNotWait) {
  counts.count({0, 2});
  const auto before = test::host_synchronisations(device);
  counts.count({0, 2});
  EXPECT_EQ(test::host_synchronisations(device), before);
}

TEST_F(DeviceUpdateCounts, TheHostLearnsOfReplayedUpdates) {
  counts.count({0, 2});
  replay(4);
  EXPECT_EQ(counts.on_host(0).item<float>(), 5);
  EXPECT_EQ(counts.on_host(2).item<float>(), 1);
  counts.count({0, 2});
  EXPECT_EQ(on(counts, 0), 6);
  EXPECT_EQ(counts.of(0), 6);
}

TEST_F(DeviceUpdateCounts, AnUpdateOfOthersKnowsReplayedOnes) {
  counts.count({0, 2});
  replay(4);
  counts.count({2});
  EXPECT_EQ(counts.of(0), 5);
  EXPECT_EQ(on(counts, 2), 2);
}

// What a graph that was captured in an early step adds must stay where it is.
TEST_F(DeviceUpdateCounts, NoSetOfSlicesIsForgottenForOthers) {
  UpdateCounts four({device, device, device, device});
  const auto waits_of = [&](const std::vector<std::size_t>& slices) {
    const auto before = test::host_synchronisations(device);
    four.count(slices);
    return test::host_synchronisations(device) - before;
  };
  four.count({0});
  four.count({1});
  const auto waits_if_known = waits_of({0});
  const std::vector<std::vector<std::size_t>> others = {
      {2},    {3},    {0, 1}, {0, 2},    {0, 3},   {1, 2},
      {1, 3}, {2, 3}, {0, 1}, {0, 1, 2}, {1, 2, 3}};
  for (const auto& slices : others) {
    four.count(slices);
  }
  EXPECT_EQ(waits_of({0}), waits_if_known);
  EXPECT_EQ(on(four, 0), 8);
  EXPECT_EQ(on(four, 1), 7);
  EXPECT_EQ(on(four, 2), 6);
  EXPECT_EQ(four.on_host(3).item<float>(), 5);
}

TEST_F(DeviceUpdateCounts, WhatTheHostWritesCountsWhereItWasRead) {
  counts.count({0, 2});
  replay(4);
  const auto* address = counts.for_kernel(0).const_data_ptr();
  counts.on_host(0).fill_(100);
  counts.on_host(2).fill_(200);
  counts.count({0, 2});
  EXPECT_EQ(counts.for_kernel(0).const_data_ptr(), address);
  EXPECT_EQ(on(counts, 0), 101);
  EXPECT_EQ(on(counts, 2), 201);
}

}  // namespace
}  // namespace sherd::optim
