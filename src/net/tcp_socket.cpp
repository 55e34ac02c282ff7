// SPDX-License-Identifier: Apache-2.0
#include "net/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include "base/check.h"

namespace sherd::net {
namespace {

// The port is at the same place in both families.
std::uint16_t port_of(const sockaddr_storage& storage) {
  sockaddr_in address = {};
  std::memcpy(&address, &storage, sizeof address);
  return ntohs(address.sin_port);
}

void set(int socket, int level, int name, int value) {
  // Linux has long had these options, so only a mistake in sherd can make this fail.
  const int result = ::setsockopt(socket, level, name, &value, sizeof value);
  SHERD_ASSERT(result == 0, "socket option ", name, " = ", value);
}

constexpr int kProbeAfterSeconds = 2;
constexpr int kProbeIntervalSeconds = 1;
// The kernel's limit, which is 24 days.
constexpr std::int64_t kUserTimeoutMsMax = std::numeric_limits<int>::max();

Result<ListeningSocket> listen_on_one(const SocketAddress& address) {
  sockaddr_storage storage = address.storage;
  socklen_t bytes = address.bytes;
  auto* name = reinterpret_cast<sockaddr*>(&storage);
  const int on = 1;
  const int reuse = port_of(storage) != 0 ? 1 : 0;
  Descriptor socket(::socket(
      storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int fd = socket.get();
  if (fd < 0 ||
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse) != 0 ||
      ::bind(fd, name, bytes) != 0 ||
      // Only now, so that the system does not choose a port that another socket holds. Connections
      // that linger after this process then do not keep the next one from the port.
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::listen(fd, SOMAXCONN) != 0 || ::getsockname(fd, name, &bytes) != 0) {
    return Status(ErrorCode::kUnavailable, std::strerror(errno));
  }
  return ListeningSocket{
      std::move(socket), port_of(storage), storage.ss_family};
}

}  // namespace

Result<std::vector<SocketAddress>> addresses_of(
    const std::string& host, std::uint16_t port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(
        ErrorCode::kUnavailable,
        "no address for host '" + host + "': " + ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(
      found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.bytes = each->ai_addrlen;
  }
  return addresses;
}

Result<SocketAddress> resolve(const std::string& host, std::uint16_t port) {
  SHERD_ASSIGN_OR_RETURN(const auto addresses, addresses_of(host, port));
  return addresses.front();
}

Result<ListeningSocket> listen_on(std::span<const SocketAddress> addresses) {
  Status why;
  for (const SocketAddress& address : addresses) {
    auto listening = listen_on_one(address);
    if (listening.ok()) {
      return listening;
    }
    why = listening.status();
  }
  return why;
}

Result<ListeningSocket> listen_on(const std::string& host) {
  SHERD_ASSIGN_OR_RETURN(const auto addresses, addresses_of(host, 0));
  auto listening = listen_on(addresses);
  if (!listening.ok()) {
    return Status(
        ErrorCode::kUnavailable,
        "cannot listen on " + host + ": " + listening.status().message());
  }
  return listening;
}

void set_peer_options(int socket, Duration user_timeout) {
  const auto whole_ms = std::clamp<std::int64_t>(
      std::chrono::ceil<std::chrono::milliseconds>(user_timeout).count(), 1,
      kUserTimeoutMsMax);
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(whole_ms));
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeIntervalSeconds);
}

Result<Descriptor> begin_connect(const SocketAddress& address) {
  Descriptor socket(::socket(
      address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
      0));
  if (!socket.open()) {
    return Status(
        ErrorCode::kUnavailable,
        std::string("no socket: ") + std::strerror(errno));
  }
  if (::connect(
          socket.get(), reinterpret_cast<const sockaddr*>(&address.storage),
          address.bytes) != 0 &&
      errno != EINPROGRESS) {
    // Returned as a failure to connect, since connect_error() would no longer report it.
    return Status(ErrorCode::kPeerLost, std::strerror(errno));
  }
  return socket;
}

HostAddress numeric(const SocketAddress& address) {
  const auto* any = reinterpret_cast<const sockaddr*>(&address.storage);
  return {ip_of(any, address.bytes), port_of(address.storage)};
}

std::string peer_of(int socket) {
  SocketAddress peer = {.storage = {}, .bytes = sizeof(sockaddr_storage)};
  auto* address = reinterpret_cast<sockaddr*>(&peer.storage);
  const bool is_there = ::getpeername(socket, address, &peer.bytes) == 0;
  const HostAddress its = is_there ? numeric(peer) : HostAddress();
  return its.host.empty() ? "somebody who has gone" : its.text();
}

int connect_error(int socket) {
  int error = 0;
  socklen_t bytes = sizeof error;
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0
      ? error
      : errno;
}

}  // namespace sherd::net
