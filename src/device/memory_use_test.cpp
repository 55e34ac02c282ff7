// SPDX-License-Identifier: Apache-2.0
#include "device/memory_use.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "support/checking_device/checking_device.h"

namespace sherd::device {
namespace {

at::Tensor kibibytes(std::int64_t count) {
  return at::empty(
      {count << 10},
      at::TensorOptions().device(test::checking_device(5)).dtype(at::kByte));
}

TEST(MemoryUse, SaysWhatIsInUseAndWhatIsReserved) {
  const auto device = test::checking_device(5);
  give_back_free_memory(device);
  const auto before = memory_use(device).value();
  auto kept = kibibytes(4);
  auto freed = kibibytes(16);
  freed.reset();
  const auto after = memory_use(device).value();
  EXPECT_EQ(after.in_use, before.in_use + (4 << 10));
  EXPECT_EQ(after.reserved, before.reserved + (20 << 10));
  give_back_free_memory(device);
  EXPECT_EQ(memory_use(device)->reserved, before.reserved + (4 << 10));
  EXPECT_EQ(memory_use(device)->in_use, after.in_use);
}

TEST(MemoryUse, HasThePeaksSinceTheyWereReset) {
  const auto device = test::checking_device(5);
  give_back_free_memory(device);
  (void)kibibytes(64);
  give_back_free_memory(device);
  reset_memory_peaks(device);
  const auto before = memory_use(device).value();
  EXPECT_EQ(before.in_use_peak, before.in_use);
  EXPECT_EQ(before.reserved_peak, before.reserved);
  (void)kibibytes(8);
  (void)kibibytes(16);
  const auto after = memory_use(device).value();
  EXPECT_EQ(after.in_use_peak, before.in_use + (16 << 10));
  EXPECT_EQ(after.reserved_peak, before.reserved + (24 << 10));
}

TEST(MemoryUse, OfOneDeviceIsNotThatOfAnother) {
  const auto other = memory_use(test::checking_device(6)).value();
  const auto mine = kibibytes(4);
  EXPECT_EQ(memory_use(test::checking_device(6))->in_use, other.in_use);
}

TEST(MemoryUse, OfTheCpuIsUnknown) {
  EXPECT_FALSE(memory_use(c10::kCPU).has_value());
}

}  // namespace
}  // namespace sherd::device
