// SPDX-License-Identifier: Apache-2.0
//
// Decides at which address a replica's ranks listen and let others reach them. Thread rule: a pure
// function.
#pragma once

#include <string>
#include "net/host_address.h"

namespace sherd::ft {

// `host` is SessionOptions::host, and `route` how this host reaches the coordinator. An empty host
// stands for the address from which it does, since replicas on other hosts reach the coordinator,
// too. Throws Error if there is none (kUnavailable), and if the host is a loopback address although
// the coordinator is elsewhere.
std::string announced_host(
    const std::string& host,
    const net::HostAddress& coordinator,
    const net::IpRoute& route);

}  // namespace sherd::ft
