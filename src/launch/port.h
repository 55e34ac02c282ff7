// SPDX-License-Identifier: Apache-2.0
//
// The address and port at which the ranks of a job meet. Thread rule: any thread.
#pragma once

#include <cstdint>
#include "base/descriptor.h"
#include "base/status.h"

namespace sherd::launch {

// Succeeds if this host reaches itself at 127.0.0.1. Sends nothing.
Status check_loopback();

// Succeeds if a process may listen on `port` now, because no other process does. A port that only
// lingers after an earlier job counts as free.
Status check_port_free(int port);

// A port that no other launcher gets while this object lives. Rank 0 can listen on it nevertheless.
struct ReservedPort {
  int port = 0;
  Descriptor held = {};  // Bound but not listening; closed by exec.
};

// A free port from 20000 to 29999, below the ephemeral range: a port from that range could be taken
// by any outgoing connection before rank 0 listens. `seed` (the process number) determines where
// the search begins.
Result<ReservedPort> reserve_port(std::uint64_t seed);

}  // namespace sherd::launch
