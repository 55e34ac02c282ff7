// SPDX-License-Identifier: Apache-2.0
#include "device/last_use.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include "support/checking_device/checking_device.h"

namespace sherd::device {
namespace {

// A stream that computes and two that gather, over a place of 64 numbers.
class DeviceLastUse : public testing::Test {
 protected:
  ~DeviceLastUse() override {
    compute.wait(gather.record());
    compute.wait(other.record());
  }
  bool may_write(const Stream& stream, std::int64_t begin, std::int64_t end) {
    const CurrentStream on(stream);
    try {
      arena.narrow(0, begin, end - begin).fill_(1);
    } catch (const c10::Error&) {
      return false;
    }
    return true;
  }
  Place place(std::int64_t begin, std::int64_t end) const {
    return Place::of(arena.narrow(0, begin, end - begin));
  }
  void compute_with(std::int64_t begin, std::int64_t end) {
    (void)arena.narrow(0, begin, end - begin).sum();
    uses.record(place(begin, end), compute);
  }

  const c10::Device device = test::checking_device();
  const Stream compute = Stream::current(device);
  const Stream gather = Stream::with_high_priority(device);
  const Stream other = Stream::with_high_priority(device);
  const at::Tensor arena = at::zeros({64}, at::device(device));
  LastUse uses;
};

TEST_F(DeviceLastUse, WhoWritesNextWaitsForIt) {
  compute_with(0, 64);
  uses.wait(place(0, 64), gather);
  EXPECT_TRUE(may_write(gather, 0, 64));
}

TEST_F(DeviceLastUse, WithoutTheEntryNobodyWaits) {
  (void)arena.sum();
  uses.wait(place(0, 64), gather);
  EXPECT_FALSE(may_write(gather, 0, 64));
}

TEST_F(DeviceLastUse, AnOverlapIsEnough) {
  compute_with(10, 30);
  uses.wait(place(29, 40), gather);
  EXPECT_TRUE(may_write(gather, 29, 40));
}

TEST_F(DeviceLastUse, NobodyWaitsForOtherPlaces) {
  gather.wait(compute.record());  // Waits for the zeros.
  compute_with(0, 32);
  uses.wait(place(32, 64), gather);
  EXPECT_TRUE(may_write(gather, 32, 64));
  EXPECT_FALSE(may_write(gather, 0, 32));
}

TEST_F(DeviceLastUse, AllStreamsThatUsedItAreWaitedFor) {
  for (const auto& stream : {gather, other}) {
    stream.wait(compute.record());
    const CurrentStream on(stream);
    (void)arena.sum();
  }
  uses.record(place(0, 64), gather);
  uses.record(place(0, 64), other);
  uses.wait(place(0, 64), compute);
  EXPECT_TRUE(may_write(compute, 0, 64));
}

TEST_F(DeviceLastUse, TheUsesOfAPlaceDoNotAddUp) {
  for (int step = 0; step < 100; ++step) {
    compute_with(0, 32);
    compute_with(32, 64);
    uses.wait(place(0, 64), gather);
    uses.record(place(0, 32), gather);
  }
  EXPECT_EQ(uses.size(), 3U);
  compute_with(0, 64);
  EXPECT_EQ(uses.size(), 2U);
  uses.forget(place(0, 64));
  EXPECT_EQ(uses.size(), 0U);
}

TEST(DeviceLastUseOfTheCpu, KeepsNothing) {
  LastUse uses;
  const auto memory = at::zeros({8});
  const auto stream = Stream::current(memory.device());
  uses.record(Place::of(memory), stream);
  uses.wait(Place::of(memory), stream);
  EXPECT_EQ(uses.size(), 0U);
}

}  // namespace
}  // namespace sherd::device
