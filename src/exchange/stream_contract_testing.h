// SPDX-License-Identifier: Apache-2.0
//
// Runs the contract suite with ranks that are threads and have devices with streams: exchanges of
// all ranks and of two replicas, over any backends of c10d that connect the devices. Only for
// tests.
#pragma once

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>
#include "exchange/collective_exchange.h"
#include "exchange/contract_fakes_testing.h"
#include "exchange/hybrid_exchange.h"
#include "exchange/stream_unit_transport.h"

namespace sherd::exchange::contract {

// A rank's device, and how it gets a backend among some ranks, including itself.
struct RankDevice {
  c10::Device device;
  std::function<BackendPtr(const std::string& name, const std::vector<int>&)>
      connect;
};

// `network` outlives it and makes backends between ranks that are threads.
template <typename Network>
RankDevice rank_device(Network& network, int rank, c10::Device device) {
  return {
      device,
      [&network, rank](
          const std::string& name, const std::vector<int>& members) {
        return network.backend(rank, name, members);
      }};
}

using MakeOnDevice = std::function<std::unique_ptr<Exchange>(
    test::FakeRank&, const RankDevice&)>;

// Runs a body on this many ranks, each of which makes its exchange.
using RunOnDevices = std::function<std::vector<std::string>(
    const MakeOnDevice&, int ranks, const RunOptions&, const Body&)>;

inline DeviceBackends backends_among(
    const RankDevice& on,
    const std::string& name,
    const std::vector<int>& ranks) {
  return {
      .device = on.device,
      .gather = on.connect(name + "/gathers", ranks),
      .reduce = {.backend = on.connect(name + "/reductions", ranks)}};
}

inline std::unique_ptr<Exchange> make_among(
    test::FakeRank& self,
    const std::string& name,
    const std::vector<int>& ranks,
    DeviceBackends backends) {
  return make_collective_exchange(
      self.network.transport(self.rank, name + "/gather", ranks),
      self.network.transport(self.rank, name + "/reduce", ranks),
      over_devices(std::move(backends)));
}

inline std::unique_ptr<Exchange> make_among_all(
    test::FakeRank& self, const RankDevice& on, int ranks) {
  std::vector<int> everyone(static_cast<std::size_t>(ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  return make_among(self, "all", everyone, backends_among(on, "all", everyone));
}

// Two replicas of two ranks each.
inline std::unique_ptr<Exchange> make_hybrid_on_device(
    test::FakeRank& self, const RankDevice& on, bool both_axes) {
  const int first = self.rank / 2;   // Its pair of neighbours.
  const int second = self.rank % 2;  // Its pair: {0, 2} or {1, 3}.
  const std::vector<int> row{2 * first, 2 * first + 1};
  const std::vector<int> column{second, second + 2};
  const auto& shard_axis = both_axes ? column : row;
  const auto& replicate_axis = both_axes ? row : column;
  const auto within_name = str("within", both_axes ? second : first);
  const auto across_name = str("across", both_axes ? first : second);
  auto within = backends_among(on, within_name, shard_axis);
  auto across = backends_among(on, across_name, replicate_axis);
  within.across = across.reduce;
  return make_hybrid_exchange(
      make_among(self, within_name, shard_axis, std::move(within)),
      make_among(self, across_name, replicate_axis, std::move(across)),
      {.shard_index = both_axes ? first : second,
       .replicas = 2,
       .both_axes = both_axes},
      ReduceAcross::kByShardAxis, on.device);
}

inline ExchangeUnderTest under_test(
    const RunOnDevices& run, int ranks, const MakeOnDevice& make) {
  ExchangeUnderTest with;
  with.ranks = ranks;
  with.run_on = [=](int count, const RunOptions& options, const Body& body) {
    return run(make, count, options, body);
  };
  with.sums_in_rank_order = false;
  with.reduces_meanwhile = false;
  with.limits_reductions = false;
  return with;
}

inline std::vector<ExchangeUnderTest> devices(const RunOnDevices& run) {
  std::vector<ExchangeUnderTest> all;
  for (const int ranks : {2, 3, 4}) {
    all.push_back(under_test(
        run, ranks, [ranks](test::FakeRank& self, const RankDevice& on) {
          return make_among_all(self, on, ranks);
        }));
    all.back().name = "On";
  }
  return all;
}

inline std::vector<ExchangeUnderTest> hybrid_devices(const RunOnDevices& run) {
  std::vector<ExchangeUnderTest> all;
  for (const bool both_axes : {false, true}) {
    all.push_back(under_test(
        run, 4, [both_axes](test::FakeRank& self, const RankDevice& on) {
          return make_hybrid_on_device(self, on, both_axes);
        }));
    all.back().name = both_axes ? "BothAxes" : "TwoReplicas";
    all.back().replicates = false;
    all.back().replicas = 2;
    all.back().both_axes = both_axes;
  }
  return all;
}

// All suites except that of failures, because after a failure nothing waits for memory that a
// device still writes.
#define SHERD_DEVICE_CONTRACT(prefix, contenders)                          \
  INSTANTIATE_TEST_SUITE_P(prefix, ExchangeUnshard, contenders, name_of);  \
  INSTANTIATE_TEST_SUITE_P(prefix, ExchangeReduce, contenders, name_of);   \
  INSTANTIATE_TEST_SUITE_P(prefix, ExchangeBackward, contenders, name_of); \
  INSTANTIATE_TEST_SUITE_P(prefix, ExchangeNumbers, contenders, name_of);  \
  INSTANTIATE_TEST_SUITE_P(prefix, ExchangeMismatch, contenders, name_of)

}  // namespace sherd::exchange::contract
