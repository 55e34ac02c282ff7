// SPDX-License-Identifier: Apache-2.0
//
// The contract suite over devices: each rank is a thread with a checking device, on which an access
// that no event orders fails the test, and so does a collective that another rank starts at another
// turn.
#include "exchange/collective_exchange.h"
#include "exchange/contract_fakes_testing.h"
#include "exchange/hybrid_exchange.h"
#include "exchange/stream_testing.h"
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
  return make_stream_exchange(self, network, device);
}

using MakeOnDevice =
    std::unique_ptr<Exchange> (*)(test::FakeRank&, test::ThreadNetwork&);

std::vector<std::string> run_on_devices(
    MakeOnDevice make, int ranks, const RunOptions& options, const Body& body) {
  FakeOptions fake;
  fake.seed = 5;
  fake.delay_max = std::chrono::microseconds(200);
  (void)test::checking_device();
  test::ThreadNetwork network(ranks, options.deadline);
  auto results = run_in_threads(
      [&](test::FakeRank& self) { return make(self, network); }, fake, ranks,
      options, body);
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& fault : test::take_faults(test::checking_device(rank))) {
      ADD_FAILURE() << "rank " << rank << ": " << fault;
    }
  }
  return results;
}

// Of two replicas, each of two ranks.
template <bool both_axes>
std::unique_ptr<Exchange> make_hybrid_on_device(
    test::FakeRank& self, test::ThreadNetwork& network) {
  const auto device = test::checking_device(self.rank);
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  const int first = self.rank / 2;   // Of two neighbours.
  const int second = self.rank % 2;  // Of {0, 2} and {1, 3}.
  const std::vector<int> neighbours = {2 * first, 2 * first + 1};
  const std::vector<int> others = {second, second + 2};
  const auto axis = [&](const std::string& name,
                        const std::vector<int>& ranks) {
    return make_collective_exchange_with(
        self.network.transport(self.rank, name + "/gather", ranks),
        self.network.transport(self.rank, name + "/reduce", ranks),
        over_devices(
            {.device = device,
             .gather = network.backend(self.rank, name + "/gathers", ranks),
             .reduce =
                 network.backend(self.rank, name + "/reductions", ranks)}));
  };
  auto rows = axis(str("rows", first), neighbours);
  auto columns = axis(str("columns", second), others);
  return make_hybrid_exchange(
      std::move(both_axes ? columns : rows),
      std::move(both_axes ? rows : columns),
      {.shard_index = both_axes ? first : second,
       .replicas = 2,
       .both_axes = both_axes},
      ReduceAcross::kAtEnd, device);
}

std::vector<ExchangeUnderTest> hybrids() {
  std::vector<ExchangeUnderTest> all;
  for (const bool both_axes : {false, true}) {
    ExchangeUnderTest with;
    with.name = both_axes ? "BothAxes" : "TwoReplicas";
    with.ranks = 4;
    with.run_on = [=](int ranks, const RunOptions& options, const Body& body) {
      return run_on_devices(
          both_axes ? make_hybrid_on_device<true>
                    : make_hybrid_on_device<false>,
          ranks, options, body);
    };
    with.replicates = false;
    with.replicas = 2;
    with.both_axes = both_axes;
    with.sums_in_rank_order = false;
    with.reduces_meanwhile = false;
    with.limits_reductions = false;
    all.push_back(with);
  }
  return all;
}

std::vector<ExchangeUnderTest> devices() {
  std::vector<ExchangeUnderTest> all;
  for (const int ranks : {2, 3, 4}) {
    ExchangeUnderTest with;
    with.name = "On";
    with.ranks = ranks;
    with.run_on = [](int count, const RunOptions& options, const Body& body) {
      return run_on_devices(make_on_device, count, options, body);
    };
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

const auto kHybrids = testing::ValuesIn(hybrids());
INSTANTIATE_TEST_SUITE_P(DeviceHybrid, ExchangeUnshard, kHybrids, name_of);
INSTANTIATE_TEST_SUITE_P(DeviceHybrid, ExchangeReduce, kHybrids, name_of);
INSTANTIATE_TEST_SUITE_P(DeviceHybrid, ExchangeBackward, kHybrids, name_of);
INSTANTIATE_TEST_SUITE_P(DeviceHybrid, ExchangeNumbers, kHybrids, name_of);
INSTANTIATE_TEST_SUITE_P(DeviceHybrid, ExchangeMismatch, kHybrids, name_of);

}  // namespace
}  // namespace sherd::exchange::contract
