// SPDX-License-Identifier: Apache-2.0
//
// The contract suite over devices: each rank is a thread with a checking device, on which an access
// that no event orders fails the test, and so does a collective that another rank starts at another
// turn.
#include "exchange/collective_exchange.h"
#include "exchange/contract_fakes_testing.h"
#include "exchange/stream_unit_transport.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include "support/checking_device/checking_device.h"
#include "support/checking_device/thread_backend.h"

namespace sherd::exchange::contract {
namespace {

std::unique_ptr<Exchange> make_on_device(
    test::FakeRank& self, test::ThreadNetwork& network) {
  const auto device = test::checking_device(self.rank);
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  return make_collective_exchange_with(
      self.network.transport(self.rank, "gather"),
      self.network.transport(self.rank, "reduce"),
      over_devices(
          {.device = device,
           .gather = network.backend(self.rank, "gathers"),
           .reduce = network.backend(self.rank, "reductions")}));
}

std::vector<std::string> run_on_devices(
    int ranks, const RunOptions& options, const Body& body) {
  FakeOptions fake;
  fake.seed = 5;
  fake.delay_max = std::chrono::microseconds(200);
  (void)test::checking_device();
  test::ThreadNetwork network(ranks, options.deadline);
  auto results = run_in_threads(
      [&](test::FakeRank& self) { return make_on_device(self, network); }, fake,
      ranks, options, body);
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& fault : test::take_faults(test::checking_device(rank))) {
      ADD_FAILURE() << "rank " << rank << ": " << fault;
    }
  }
  return results;
}

std::vector<ExchangeUnderTest> devices() {
  std::vector<ExchangeUnderTest> all;
  for (const int ranks : {2, 3, 4}) {
    ExchangeUnderTest with;
    with.name = "On";
    with.ranks = ranks;
    with.run_on = run_on_devices;
    with.sums_in_rank_order = false;
    with.reduces_meanwhile = false;
    with.limits_reductions = false;
    all.push_back(with);
  }
  return all;
}

const auto kDevices = testing::ValuesIn(devices());
INSTANTIATE_TEST_SUITE_P(Device, ExchangeUnshard, kDevices, name_of);
INSTANTIATE_TEST_SUITE_P(Device, ExchangeReduce, kDevices, name_of);
INSTANTIATE_TEST_SUITE_P(Device, ExchangeBackward, kDevices, name_of);
INSTANTIATE_TEST_SUITE_P(Device, ExchangeNumbers, kDevices, name_of);
INSTANTIATE_TEST_SUITE_P(Device, ExchangeMismatch, kDevices, name_of);

}  // namespace
}  // namespace sherd::exchange::contract
