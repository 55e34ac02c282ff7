// SPDX-License-Identifier: Apache-2.0
//
// The addresses at which this host can listen: those of its network interfaces. Thread rule: any
// thread.
#pragma once

#include <string>
#include <vector>

namespace sherd::world {

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // IPv4 or IPv6, without brackets.
  bool loopback = false;
};

// One entry for each IP address of this host; empty if the kernel does not tell.
std::vector<InterfaceAddress> interface_addresses();

// "eth0 (10.0.0.2), lo (127.0.0.1)", for errors. Leaves out IPv6 addresses that hold for one link
// only, which every interface has.
std::string describe(const std::vector<InterfaceAddress>& addresses);

}  // namespace sherd::world
