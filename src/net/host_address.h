// SPDX-License-Identifier: Apache-2.0
//
// HostAddress is a host and a port as users write them: "node7:4300", "10.0.0.7:4300",
// "[::1]:4300". route_to() says how this host reaches another one. Thread rule: values and pure
// functions, but route_to() may wait for the name service.
#pragma once

#include <sys/socket.h>
#include <cstdint>
#include <string>
#include <string_view>

namespace sherd::net {

struct HostAddress {
  std::string host;  // A name, or an IP address without brackets.
  std::uint16_t port = 0;

  // "host:port", with brackets around an IPv6 address.
  std::string text() const;
  bool operator==(const HostAddress&) const = default;
};

// Throws Error for anything but a host, a colon and a port of 0 to 65535. An IPv6 address needs its
// brackets: without them its end looks like a port.
HostAddress parse_host_address(std::string_view text);

// The address without its port; empty if it is no IP address.
std::string ip_of(const sockaddr* address, socklen_t length);

// The IP addresses from and to which this host would send. They are equal, or both loopback, if the
// other host is this one.
struct IpRoute {
  std::string from;
  std::string to;
  bool operator==(const IpRoute&) const = default;
};

// Both are empty if the name or address is unknown, or if no interface leads there. Sends nothing
// to that host.
IpRoute route_to(const std::string& host);

}  // namespace sherd::net
