// SPDX-License-Identifier: Apache-2.0
//
// HostAddress is where somebody listens, as users write it: "node7:4300",
// "10.0.0.7:4300", "[::1]:4300". Thread rule: a value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sherd::net {

struct HostAddress {
  std::string host;  // A name, or an IP address without brackets.
  std::uint16_t port = 0;

  // "host:port", with brackets around an address of IPv6.
  std::string text() const;
  bool operator==(const HostAddress&) const = default;
};

// Throws Error for anything but a host, a colon and a port of 0 to 65535. An
// address of IPv6 wants its brackets: without, its end looks like a port.
HostAddress parse_host_address(std::string_view text);

}  // namespace sherd::net
