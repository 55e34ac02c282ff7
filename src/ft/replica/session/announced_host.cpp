// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/announced_host.h"

#include <algorithm>

#include "base/check.h"
#include "net/security.h"
#include "net/tcp_socket.h"

namespace sherd::ft {
namespace {

// The first address of a host that has loopback addresses only; empty for others, and for a name
// that this host does not know, since others may.
std::string loopback_address_of(const std::string& host) {
  const auto found = net::addresses_of(host, 0);
  const bool all_loopback =
      found.ok() && std::ranges::all_of(found.value(), [](const auto& one) {
        return net::is_loopback(net::numeric(one).host);
      });
  return all_loopback ? net::numeric(found.value().front()).host : "";
}

}  // namespace

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
  if (route.from == route.to || net::is_loopback(route.to)) {
    return host;
  }
  const std::string loopback = loopback_address_of(host);
  SHERD_CHECK(
      loopback.empty(), kExpected, coordinator.text(),
      ", on another host; found \"", host, "\"",
      loopback == host ? "" : str(", which is ", loopback, " on this host"),
      ": only this host reaches it there");
  return host;
}

}  // namespace sherd::ft
