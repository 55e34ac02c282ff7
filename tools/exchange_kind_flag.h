// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <sherd/fsdp/fully_shard.h>

namespace sherd::tools {

// What --exchange means, in all subcommands; they check the name.
inline ExchangeKind parse_exchange_kind(const std::string& name) {
  if (name == "collective") {
    return ExchangeKind::kCollective;
  }
  if (name == "shm") {
    return ExchangeKind::kSharedMemory;
  }
  return name == "hierarchical" ? ExchangeKind::kHierarchical
                                : ExchangeKind::kAuto;
}

}  // namespace sherd::tools
