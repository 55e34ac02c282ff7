// SPDX-License-Identifier: Apache-2.0
#include "device/memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include "support/checking_device/checking_device.h"

namespace sherd::device {
namespace {

at::Tensor numbers_at(void* address, const c10::Device& device) {
  return at::for_blob(address, {256})
      .options(at::device(device))
      .target_device(device)
      .make_tensor();
}

// Returns what goes wrong when a block that another stream used is given back.
std::vector<std::string> give_back_after_use(bool recorded) {
  const auto device = test::checking_device();
  const auto compute = Stream::current(device);
  const auto owner = Stream::with_high_priority(device);
  LastUse uses;
  {
    StreamMemory memory(device, owner, uses);
    auto* block = memory.take(1024);
    uses.wait(Place::at(block, 1024), compute);
    numbers_at(block, device).fill_(1);
    if (recorded) {
      uses.record(Place::at(block, 1024), compute);
    }
    memory.give_back(block);
  }
  return test::take_faults(device);
}

TEST(DeviceMemory, IsFreedWhenOtherStreamsAreDone) {
  EXPECT_EQ(give_back_after_use(true).size(), 0U);
  EXPECT_EQ(give_back_after_use(false).size(), 1U);
}

TEST(DeviceMemory, ABlockThatTheOwnerUsedBeforeIsWaitedFor) {
  const auto device = test::checking_device();
  const auto compute = Stream::current(device);
  const auto owner = Stream::with_high_priority(device);
  {
    const CurrentStream on(owner);
    (void)at::ones({256}, at::device(device));  // It is freed at once.
  }
  for (const bool waits : {false, true}) {
    LastUse uses;
    StreamMemory memory(device, owner, uses);
    auto* block = memory.take(1024);
    if (waits) {
      uses.wait(Place::at(block, 1024), compute);
    }
    const auto values = numbers_at(block, device);
    if (waits) {
      values.fill_(1);
    } else {
      EXPECT_THROW(values.fill_(1), c10::Error);
    }
    uses.record(Place::at(block, 1024), compute);
    memory.give_back(block);
    EXPECT_EQ(uses.size(), 0U);
  }
  EXPECT_EQ(test::take_faults(device).size(), 0U);
}

TEST(DeviceMemory, WhatIsNotGivenBackGoesWithIt) {
  const auto device = test::checking_device();
  LastUse uses;
  {
    StreamMemory memory(device, Stream::with_high_priority(device), uses);
    EXPECT_NE(memory.take(0), nullptr);
    EXPECT_NE(memory.take(10), memory.take(10));
    EXPECT_EQ(uses.size(), 3U);
  }
  EXPECT_EQ(uses.size(), 0U);
  EXPECT_EQ(test::take_faults(device).size(), 0U);
}

TEST(DeviceMemory, OfTheCpuNeedsNoOrder) {
  LastUse uses;
  StreamMemory memory(c10::kCPU, {}, uses);
  auto* block = static_cast<char*>(memory.take(16));
  block[15] = 1;
  memory.give_back(block);
  EXPECT_EQ(uses.size(), 0U);
}

}  // namespace
}  // namespace sherd::device
