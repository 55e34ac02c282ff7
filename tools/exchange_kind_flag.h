// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <sherd/fsdp/fully_shard.h>

namespace sherd::tools {

// The meaning of --exchange in all subcommands, which check the name.
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
