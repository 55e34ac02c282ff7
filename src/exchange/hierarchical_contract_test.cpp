// SPDX-License-Identifier: Apache-2.0
//
// The contract suite over invented hosts: ranks are processes, and die by
// SIGKILL.
#include "exchange/contract_processes_testing.h"

#include "exchange/make_exchange.h"
#include "world/transport.h"

namespace sherd::exchange::contract {
namespace {

ExchangeUnderTest on_hosts(
    const std::string& name, const std::vector<int>& hosts) {
  const int ranks = std::accumulate(hosts.begin(), hosts.end(), 0);
  return {
      .name = name,
      .ranks = ranks,
      .run_on =
          [hosts](int count, const RunOptions& options, const Body& body) {
            return run_in_processes(
                [](const World& world, const std::vector<int>& all) {
                  return make_hierarchical_exchange(
                      world, "contract",
                      world::make_c10d_transport(
                          world, "contract/gather", all));
                },
                count, options, body, hosts);
          },
      .hosts = hosts};
}

std::vector<ExchangeUnderTest> hierarchies() {
  return {
      on_hosts("OneHost", {2}), on_hosts("TwoHosts", {1, 1}),
      on_hosts("TwoPairs", {2, 2}), on_hosts("ThreeHosts", {1, 1, 1}),
      on_hosts("ThreeAndFour", {3, 4})};
}

SHERD_EXCHANGE_CONTRACT(Hierarchical, testing::ValuesIn(hierarchies()));

}  // namespace
}  // namespace sherd::exchange::contract
