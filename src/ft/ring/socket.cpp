// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace sherd::ft::ring {
namespace {

constexpr int kBacklog = 64;

std::uint16_t port_of(const sockaddr_storage& storage) {
  // At the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

Status failed(const std::string& what, int error) {
  return {ErrorCode::kUnavailable, what + ": " + std::strerror(error)};
}

void set(int socket, int level, int name, int value) {
  ::setsockopt(socket, level, name, &value, sizeof value);
}

int whole_seconds(Duration d) {
  const auto count =
      std::chrono::duration_cast<std::chrono::seconds>(d).count();
  return count < 1 ? 1 : static_cast<int>(count);
}

}  // namespace

Result<SocketAddress> resolve(const std::string& host, std::uint16_t port) {
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
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.bytes = found->ai_addrlen;
  return address;
}

Result<ListeningSocket> listen_on(const std::string& host) {
  const auto address = resolve(host, 0);
  if (!address.ok()) {
    return address.status();
  }
  sockaddr_storage storage = address.value().storage;
  socklen_t bytes = address.value().bytes;
  ListeningSocket listening;
  listening.socket = Descriptor(::socket(
      storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int fd = listening.socket.get();
  auto* name = reinterpret_cast<sockaddr*>(&storage);
  if (fd < 0 || ::bind(fd, name, bytes) != 0 || ::listen(fd, kBacklog) != 0) {
    return failed("cannot listen on " + host, errno);
  }
  bytes = sizeof storage;
  if (::getsockname(fd, name, &bytes) != 0) {
    return failed("cannot listen on " + host, errno);
  }
  listening.port = port_of(storage);
  return listening;
}

void set_peer_options(int socket, const TcpTimeouts& timers) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
      timers.user_timeout);
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(ms.count()));
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, whole_seconds(timers.keep_alive_idle));
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL,
      whole_seconds(timers.keep_alive_interval));
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, timers.keep_alive_probes);
}

Result<Descriptor> begin_connect(const SocketAddress& address) {
  Descriptor socket(::socket(
      address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
      0));
  if (!socket.open()) {
    return failed("no socket", errno);
  }
  if (::connect(
          socket.get(), reinterpret_cast<const sockaddr*>(&address.storage),
          address.bytes) != 0 &&
      errno != EINPROGRESS) {
    // Returned as a failure to connect: connect_error() would not report it any more.
    return Status(ErrorCode::kPeerLost, std::strerror(errno));
  }
  return socket;
}

std::string peer_of(int socket) {
  sockaddr_storage peer = {};
  socklen_t bytes = sizeof peer;
  std::array<char, NI_MAXHOST> host = {};
  std::array<char, NI_MAXSERV> port = {};
  auto* address = reinterpret_cast<sockaddr*>(&peer);
  if (::getpeername(socket, address, &bytes) != 0 ||
      ::getnameinfo(
          address, bytes, host.data(), host.size(), port.data(), port.size(),
          NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "somebody who has gone";
  }
  return std::string(host.data()) + ":" + port.data();
}

int connect_error(int socket) {
  int error = 0;
  socklen_t bytes = sizeof error;
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0
      ? error
      : errno;
}

}  // namespace sherd::ft::ring
