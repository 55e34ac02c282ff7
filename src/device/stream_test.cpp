// SPDX-License-Identifier: Apache-2.0
#include "device/stream.h"

#include <gmock/gmock.h>
#include <torch/torch.h>
#include "support/checking_device/checking_device.h"

namespace sherd::device {
namespace {

using ::testing::HasSubstr;

const c10::Device kCpu = c10::kCPU;

TEST(DeviceStream, TheCpuHasTheNullStreamAlone) {
  EXPECT_TRUE(Stream::current(kCpu).is_null());
  EXPECT_TRUE(Stream::with_high_priority(kCpu).is_null());
  const auto event = Stream::current(kCpu).record();
  event.synchronize();
  Stream::with_high_priority(kCpu).wait(event);
  const CurrentStream on(Stream::current(kCpu));
  EXPECT_EQ(at::ones({3}).sum().item<float>(), 3);
}

TEST(DeviceStream, IsCurrentWhileTheScopeLasts) {
  const auto device = test::checking_device();
  const auto before = Stream::current(device);
  const auto other = Stream::with_high_priority(device);
  EXPECT_FALSE(other == before);
  {
    const CurrentStream on(other);
    EXPECT_TRUE(Stream::current(device) == other);
  }
  EXPECT_TRUE(Stream::current(device) == before);
}

TEST(DeviceStream, AWaitOrdersTheStreams) {
  const auto device = test::checking_device();
  const auto compute = Stream::current(device);
  const auto other = Stream::with_high_priority(device);
  const auto values = at::zeros({4}, at::device(device));
  const auto write = [&] {
    const CurrentStream on(other);
    values.fill_(1);
  };
  EXPECT_THROW(write(), c10::Error);
  other.wait(compute.record());
  write();
  EXPECT_THROW(values.add(1), c10::Error);
  compute.wait(other.record());
  const auto waits = test::host_synchronisations(device);
  EXPECT_EQ(values.add(1)[3].item<float>(), 2);
  EXPECT_EQ(test::host_synchronisations(device), waits + 1);  // Only item().
}

TEST(DeviceStream, AnEventIsTheMomentOfItsRecord) {
  const auto device = test::checking_device();
  const auto compute = Stream::current(device);
  const auto other = Stream::with_high_priority(device);
  const auto values = at::zeros({4}, at::device(device));
  const auto early = compute.record();
  values.add_(1);
  other.wait(early);
  {
    const CurrentStream on(other);
    EXPECT_THROW(values.fill_(1), c10::Error);
  }
  compute.wait(other.record());
}

}  // namespace
}  // namespace sherd::device
