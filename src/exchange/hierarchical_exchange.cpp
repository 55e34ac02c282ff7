// SPDX-License-Identifier: Apache-2.0
#include "exchange/hierarchical_exchange.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/hosts.h"
#include "exchange/collective_exchange.h"
#include "exchange/comm_link.h"
#include "exchange/host_carrier.h"
#include "exchange/message_carrier.h"

namespace sherd::exchange {

std::unique_ptr<Exchange> make_hierarchical_exchange(
    const World& world, const std::string& name, std::unique_ptr<Link> gather) {
  std::vector<int> ranks;
  for (int i = 0; i < gather->size(); ++i) {
    ranks.push_back(gather->world_rank(i));
  }
  auto hosts = comm::ranks_by_host(world, ranks);
  for (auto& host : hosts) {
    for (auto& rank : host) {  // Their positions from here on.
      rank = static_cast<int>(
          std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    }
  }
  return make_exchange_by(
      std::move(gather),
      make_comm_link(
          world, name + "/reduce", ranks, 2 * world.options().deadline),
      [=](const ModelSpec& model, const auto& gathers,
          const auto& sums) -> Result<std::unique_ptr<Carrier>> {
        if (model.placement == Placement::kReplicate) {
          return make_message_carrier(model, gathers, sums);
        }
        return make_host_carrier(world, name, hosts, model, gathers, sums);
      });
}

}  // namespace sherd::exchange
