// SPDX-License-Identifier: Apache-2.0
//
// An Exchange for ranks of one host, without messages: all map one segment, in
// which every unit lies whole, once. A rank's shard is its slice of that (or,
// where whole units have another dtype, a private one that publish() casts into
// it), so nothing is gathered and one rank may use units that others do not.
// Gradient slots lie in it too; the owner of a slice sums it over all slots.
// Why it is safe to write in place: docs/design/shared_memory.md.
#pragma once

#include <chrono>
#include <memory>
#include "exchange/exchange.h"
#include "exchange/link.h"

namespace sherd::exchange {

struct SharedMemoryOptions {
  // Of every wait.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
};

// `control` connects the ranks, which must run on this host; open() uses it to
// compare models and to pass the segment on.
// Units cannot be replicated (Placement::kReplicate): open() refuses.
std::unique_ptr<Exchange> make_shared_memory_exchange(
    std::unique_ptr<Link> control, const SharedMemoryOptions& options = {});

}  // namespace sherd::exchange
