// SPDX-License-Identifier: Apache-2.0
#include "world/local_addresses.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <memory>
#include "base/check.h"
#include "net/host_address.h"

namespace sherd::world {

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(
      first, &::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    const int family =
        one->ifa_addr == nullptr ? AF_UNSPEC : one->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) {
      const auto length =
          family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      found.push_back(
          {.interface = one->ifa_name,
           .address = net::ip_of(one->ifa_addr, static_cast<socklen_t>(length)),
           .loopback = (one->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  return found;
}

std::string describe(const std::vector<InterfaceAddress>& addresses) {
  std::string text;
  for (const auto& one : addresses) {
    // Only those that hold for one link name it.
    if (one.address.find('%') == std::string::npos) {
      text +=
          str(text.empty() ? "" : ", ", one.interface, " (", one.address, ")");
    }
  }
  return text.empty() ? "none" : text;
}

}  // namespace sherd::world
