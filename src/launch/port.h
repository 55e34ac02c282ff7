// SPDX-License-Identifier: Apache-2.0
//
// The port on which the ranks of a job meet. Thread rule: any thread.
#pragma once

#include <cstdint>
#include "base/status.h"

namespace sherd::launch {

// Success when a process may listen on `port` now: no other one does. A port
// that only lingers after an earlier job counts as free.
Status check_port_free(int port);

// A free port from 20000 to 29999, below the ephemeral range: a port from that
// range could be taken by any outgoing connection before rank 0 listens. `seed`
// (the process number) keeps launchers that start together apart.
Result<int> find_free_port(std::uint64_t seed);

}  // namespace sherd::launch
