// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/announced_host.h"

#include "base/check.h"
#include "net/security.h"

namespace sherd::ft {

std::string announced_host(
    const std::string& host,
    const net::HostAddress& coordinator,
    const net::IpRoute& route) {
  constexpr const char* kExpected =
      "[ft] SHERD_HOST: expected the address at which other replicas reach "
      "this host, since the coordinator is at ";
  if (host.empty()) {
    SHERD_CHECK_AS(
        kUnavailable, !route.from.empty(), kExpected, coordinator.text(),
        ", to which this host has no way; found it unset");
    return route.from;
  }
  const bool elsewhere = route.from != route.to && !net::is_loopback(route.to);
  SHERD_CHECK(
      !elsewhere || (host != "localhost" && !net::is_loopback(host)), kExpected,
      coordinator.text(), ", on another host; found \"", host,
      "\", which only this host reaches");
  return host;
}

}  // namespace sherd::ft
