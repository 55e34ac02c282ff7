// SPDX-License-Identifier: Apache-2.0
#include "net/host_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <utility>

#include "base/check.h"
#include "base/descriptor.h"
#include "base/text.h"
#include "net/tcp_socket.h"

namespace sherd::net {
namespace {

constexpr const char* kExpected =
    "[net] expected host:port, as in 10.0.0.7:4300 or [::1]:4300, found \"";

std::uint16_t parse_port(std::string_view digits, std::string_view text) {
  const auto port = parse_number<std::uint16_t>(digits);
  SHERD_CHECK(
      port.has_value(), kExpected, text, "\", whose port \"", digits,
      "\" is no number from 0 to 65535");
  return *port;
}

// A connected UDP socket knows its own address and sends nothing.
std::string local_address_towards(const SocketAddress& target) {
  const Descriptor socket(
      ::socket(target.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress own = {.storage = {}, .bytes = sizeof(sockaddr_storage)};
  auto* any = reinterpret_cast<sockaddr*>(&own.storage);
  const auto* there = reinterpret_cast<const sockaddr*>(&target.storage);
  const bool known = socket.open() &&
      ::connect(socket.get(), there, target.bytes) == 0 &&
      ::getsockname(socket.get(), any, &own.bytes) == 0;
  return known ? numeric(own).host : "";
}

}  // namespace

std::string ip_of(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  const int error = ::getnameinfo(
      address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text : "";
}

std::string HostAddress::text() const {
  const bool brackets = host.find(':') != std::string::npos;
  return brackets ? str("[", host, "]:", port) : str(host, ":", port);
}

HostAddress parse_host_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  SHERD_CHECK(
      colon != std::string_view::npos, kExpected, text, "\" without a port");
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[')) {
    SHERD_CHECK(
        host.ends_with(']'), kExpected, text, "\" without the bracket's end");
    host = host.substr(1, host.size() - 2);
    SHERD_CHECK(
        host.find(':') != std::string_view::npos, kExpected, text,
        "\" with brackets around what is no address of IPv6");
  } else {
    SHERD_CHECK(
        host.find(':') == std::string_view::npos, kExpected, text,
        "\" (an address of IPv6 wants brackets)");
  }
  SHERD_CHECK(!host.empty(), kExpected, text, "\" without a host");
  SHERD_CHECK(
      host.find_first_of("[]/ \t") == std::string_view::npos, kExpected, text,
      "\"");
  return {std::string(host), parse_port(text.substr(colon + 1), text)};
}

IpRoute route_to(const std::string& host) {
  constexpr std::uint16_t kAnyPort = 9;
  const auto all = addresses_of(host, kAnyPort);
  if (host.empty() || !all.ok()) {
    return {};
  }
  for (const auto& address : all.value()) {
    if (auto from = local_address_towards(address); !from.empty()) {
      return {std::move(from), numeric(address).host};
    }
  }
  return {};
}

}  // namespace sherd::net
