// SPDX-License-Identifier: Apache-2.0
#include "device/host_memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include "support/checking_device/checking_device.h"

namespace sherd::device {
namespace {

TEST(HostMemory, IsPinnedForADeviceAlone) {
  const auto device = test::checking_device();
  EXPECT_TRUE(empty_on_host({2, 3}, at::kFloat, device).is_pinned());
  const auto pageable = empty_on_host({2, 3}, at::kHalf, c10::kCPU);
  EXPECT_FALSE(pageable.is_pinned());
  EXPECT_EQ(pageable.sizes(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(pageable.scalar_type(), at::kHalf);
}

TEST(HostMemory, WhatTheHostCanReadIsNotCopied) {
  const auto values = at::arange(6, at::kFloat).view({2, 3});
  EXPECT_TRUE(on_host(values).is_same(values));
  EXPECT_TRUE(on_host(values.t()).is_contiguous());
  EXPECT_TRUE(at::equal(on_host(values.t()), values.t()));
}

TEST(HostMemory, WhatIsOnADeviceIsCopiedInItsOrder) {
  const auto device = test::checking_device();
  const auto values = at::arange(6, at::kFloat).view({2, 3});
  const auto copy = on_host(values.to(device).t());
  EXPECT_TRUE(copy.is_cpu() && copy.is_contiguous() && copy.is_pinned());
  EXPECT_TRUE(at::equal(copy, values.t()));
}

}  // namespace
}  // namespace sherd::device
