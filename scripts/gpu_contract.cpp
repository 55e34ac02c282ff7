// SPDX-License-Identifier: Apache-2.0
//
// The contract suite of exchanges on one GPU, which two to four ranks share as threads, each with a
// stream of its own to compute in; and once more with a kernel of 0.3 ms before and after each read
// of a collective, which makes a missing wait show. Built and started by scripts/cuda_check.py.
#include "exchange/stream_contract_testing.h"

#include <cstdio>

#include <ATen/cuda/Sleep.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include "support/threads_on_device.h"

namespace sherd::exchange::contract {
namespace {

std::vector<std::string> run_on_a_gpu(
    const std::function<void()>& delay,
    const MakeOnDevice& make,
    int ranks,
    const RunOptions& options,
    const Body& body) {
  FakeOptions fake;
  fake.seed = 5;
  test::ThreadsOnDevice network(options.deadline, delay);
  return run_in_threads(
      [&](test::FakeRank& self) {
        const c10::Device device(c10::kCUDA, 0);
        const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
        guard.setDevice(device);
        // For the rest of this thread, that is for the body.
        (void)guard.exchangeStream(guard.getStreamFromGlobalPool(device));
        return make(self, rank_device(network, self.rank, device));
      },
      fake, ranks, options, body);
}

RunOnDevices with_delay(const std::function<void()>& delay) {
  return [delay](
             const MakeOnDevice& make, int ranks, const RunOptions& options,
             const Body& body) {
    return run_on_a_gpu(delay, make, ranks, options, body);
  };
}

const auto kAtOnce = with_delay({});
const auto kDelayed = with_delay([] { at::cuda::sleep(500'000); });

const auto kDevices = testing::ValuesIn(devices(kAtOnce));
SHERD_DEVICE_CONTRACT(Gpu, kDevices);
const auto kHybrids = testing::ValuesIn(hybrid_devices(kAtOnce));
SHERD_DEVICE_CONTRACT(GpuHybrid, kHybrids);
const auto kDelayedDevices = testing::ValuesIn(devices(kDelayed));
SHERD_DEVICE_CONTRACT(GpuDelayed, kDelayedDevices);
const auto kDelayedHybrids = testing::ValuesIn(hybrid_devices(kDelayed));
SHERD_DEVICE_CONTRACT(GpuHybridDelayed, kDelayedHybrids);

}  // namespace
}  // namespace sherd::exchange::contract

int main(int argc, char** argv) {
  // There a rank starts a sum across replicas that its peer never starts. NCCL lets the host go on, so
  // that ranks find out by messages; here the host waits for the peer.
  GTEST_FLAG_SET(
      filter,
      "-GpuHybrid*/ExchangeMismatch.DifferentStepsAreNamed*:"
      "GpuHybrid*/ExchangeMismatch.ARankThatDoesNotPublish*");
  testing::InitGoogleTest(&argc, argv);
  if (c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() == 0) {
    std::printf("gpu_contract: skipped, there is no device\n");
    return 0;
  }
  return RUN_ALL_TESTS();
}
