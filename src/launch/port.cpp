// SPDX-License-Identifier: Apache-2.0
#include "launch/port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <cerrno>
#include <cstring>
#include <utility>
#include "base/descriptor.h"
#include "base/hash.h"

namespace sherd::launch {
namespace {

// Whether the address may be shared as by the store of rank 0: lingering connections do not count,
// nor do sockets that allow it, too, and do not listen.
enum class Reuse : int { kNo, kYes };

// Not open after a failure, whose number is errno.
Descriptor bind_to(
    int family, const sockaddr* address, socklen_t bytes, Reuse reuse) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = static_cast<int>(reuse);
  if (socket.open() &&
      (::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) !=
           0 ||
       ::bind(socket.get(), address, bytes) != 0)) {
    const int error = errno;
    socket.close();
    errno = error;
  }
  return socket;
}

// Binds the wildcard address; where there is IPv6, its address also stands for IPv4.
Descriptor bind_wildcard(int number, Reuse reuse) {
  const auto port = htons(static_cast<std::uint16_t>(number));
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = port;
  auto socket = bind_to(
      AF_INET6, reinterpret_cast<const sockaddr*>(&v6), sizeof v6, reuse);
  if (socket.open() || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL)) {
    return socket;
  }
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = port;
  return bind_to(
      AF_INET, reinterpret_cast<const sockaddr*>(&v4), sizeof v4, reuse);
}

}  // namespace

Status check_loopback() {
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Connecting a socket for datagrams only looks for a route.
  if (!socket.open() ||
      ::connect(
          socket.get(), reinterpret_cast<const sockaddr*>(&address),
          sizeof address) == 0 ||
      (errno != ENETUNREACH && errno != ENETDOWN && errno != EHOSTUNREACH &&
       errno != EADDRNOTAVAIL)) {
    return {};
  }
  return Status(
      ErrorCode::kUnavailable,
      str("expected to reach 127.0.0.1, where the processes of the job meet, "
          "found no way: ",
          std::strerror(errno),
          "; bring up the loopback interface of this host or container (ip "
          "link set lo up)"));
}

Status check_port_free(int port) {
  if (bind_wildcard(port, Reuse::kYes).open()) {
    return {};
  }
  const int error = errno;
  return Status(
      ErrorCode::kUnavailable,
      error == EADDRINUSE
          ? str("port ", port,
                " is in use by another process; choose "
                "another with --port, or leave it out to get a free one")
          : str("port ", port, " cannot be used: ", std::strerror(error)));
}

// Linux compares what both sockets allow now, not what they allowed when they were bound. While the
// port is bound nobody shares it; afterwards it can be shared by a socket that asks for that, as
// rank 0's does. Launchers do not ask.
Result<ReservedPort> reserve_port(std::uint64_t seed) {
  constexpr int kFirst = 20000;
  constexpr int kCount = 10000;
  constexpr int kTries = 100;
  const int start = static_cast<int>(mix64(seed) % kCount);
  int error = 0;
  for (int i = 0; i < kTries; ++i) {
    const int port = kFirst + (start + i) % kCount;
    Descriptor socket = bind_wildcard(port, Reuse::kNo);
    const int on = 1;
    if (socket.open() &&
        ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ==
            0) {
      return ReservedPort{port, std::move(socket)};
    }
    error = errno;
  }
  return Status(
      ErrorCode::kUnavailable,
      str("expected a free port, found none in ", kTries,
          " tries; the last answer: ", std::strerror(error)));
}

}  // namespace sherd::launch
