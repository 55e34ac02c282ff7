// SPDX-License-Identifier: Apache-2.0
//
// The contract suite over devices: each rank is a thread with a checking device, on which an access
// that no event orders fails the test, and so does a collective that another rank starts at another
// turn.
#include "exchange/stream_contract_testing.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include "support/checking_device/checking_device.h"
#include "support/checking_device/thread_backend.h"

namespace sherd::exchange::contract {
namespace {

std::vector<std::string> run_on_checking_devices(
    const MakeOnDevice& make,
    int ranks,
    const RunOptions& options,
    const Body& body) {
  FakeOptions fake;
  fake.seed = 5;
  fake.delay_max = std::chrono::microseconds(200);
  (void)test::checking_device();
  test::ThreadNetwork network(ranks, options.deadline);
  auto results = run_in_threads(
      [&](test::FakeRank& self) {
        const auto device = test::checking_device(self.rank);
        c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
        return make(self, rank_device(network, self.rank, device));
      },
      fake, ranks, options, body);
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& fault : test::take_faults(test::checking_device(rank))) {
      ADD_FAILURE() << "rank " << rank << ": " << fault;
    }
  }
  return results;
}

const auto kDevices = testing::ValuesIn(devices(run_on_checking_devices));
SHERD_DEVICE_CONTRACT(Device, kDevices);

const auto kHybrids =
    testing::ValuesIn(hybrid_devices(run_on_checking_devices));
SHERD_DEVICE_CONTRACT(DeviceHybrid, kHybrids);

}  // namespace
}  // namespace sherd::exchange::contract
