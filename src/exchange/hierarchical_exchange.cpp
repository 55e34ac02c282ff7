// SPDX-License-Identifier: Apache-2.0
#include "exchange/hierarchical_exchange.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "world/hosts.h"
#include "exchange/collective_exchange.h"
#include "world/transport.h"
#include "exchange/hierarchical_unit_transport.h"
#include "exchange/message_unit_transport.h"

namespace sherd::exchange {

std::unique_ptr<Exchange> make_hierarchical_exchange(
    const World& world, const std::string& name, std::shared_ptr<world::Transport> gather) {
  std::vector<int> ranks;
  for (int i = 0; i < gather->size(); ++i) {
    ranks.push_back(gather->world_rank(i));
  }
  auto hosts = world::ranks_by_host(world, ranks);
  for (auto& host : hosts) {
    for (auto& rank : host) {  // Their positions from here on.
      rank = static_cast<int>(
          std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    }
  }
  return make_collective_exchange_with(
      std::move(gather),
      world::make_c10d_transport(
          world, name + "/reduce", ranks, 2 * world.options().deadline),
      [=](const ModelSpec& model, const auto& gathers,
          const auto& sums) -> Result<std::unique_ptr<UnitTransport>> {
        if (model.placement == ModelPlacement::kReplicate) {
          return make_message_unit_transport(model, gathers, sums);
        }
        return make_hierarchical_unit_transport(world, name, hosts, model, gathers, sums);
      });
}

}  // namespace sherd::exchange
