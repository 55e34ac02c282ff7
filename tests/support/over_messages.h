// SPDX-License-Identifier: Apache-2.0
//
// For tests of what only ranks that exchange messages do: gathering units, within a budget and
// according to a plan.
#pragma once

#include <sherd/fsdp/fully_shard.h>

namespace sherd::test {

inline FullyShardOptions over_messages(FullyShardOptions options = {}) {
  options.exchange = ExchangeKind::kCollective;
  return options;
}

}  // namespace sherd::test
