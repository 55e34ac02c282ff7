// SPDX-License-Identifier: Apache-2.0
#include "exchange/make_exchange.h"

#include "exchange/collective_exchange.h"
#include "exchange/comm_link.h"
#include "exchange/shared_memory_exchange.h"
#include "exchange/solo_link.h"

namespace sherd::exchange {

std::unique_ptr<Exchange> make_exchange(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    Kind kind) {
  if (ranks.size() == 1) {
    return make_collective_exchange(
        make_solo_link(ranks.front()), make_solo_link(ranks.front()));
  }
  if (kind == Kind::kSharedMemory) {
    return make_shared_memory_exchange(world, name, ranks);
  }
  return make_collective_exchange(
      make_comm_link(world, name + "/gather", ranks),
      make_comm_link(world, name + "/reduce", ranks));
}

}  // namespace sherd::exchange
