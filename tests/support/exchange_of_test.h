// SPDX-License-Identifier: Apache-2.0
//
// SHERD_TEST_EXCHANGE=shm runs tests that compare sharded training with one
// process over shared memory instead of messages.
#pragma once

#include <sherd/shard/fully_shard.h>
#include "base/rank_environment.h"

namespace sherd::test {

// `options` as given where they cannot be had through shared memory.
inline FullyShardOptions over_exchange_of_test(FullyShardOptions options) {
  const bool shared =
      process_environment()("SHERD_TEST_EXCHANGE").value_or("") == "shm";
  if (shared && options.strategy != Strategy::kNoShard &&
      !options.budget_bytes) {
    options.exchange = ExchangeKind::kSharedMemory;
  }
  return options;
}

}  // namespace sherd::test
