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

struct BindOptions {
  int port = 0;
  // Set as by the store of rank 0: lingering connections do not count, nor do sockets that set it,
  // too, and do not listen.
  bool reuse_address = false;
};

struct Bound {
  Descriptor socket;
  int error = 0;  // 0 or the error number.
};

Bound bind_to(
    int family,
    const sockaddr* address,
    socklen_t bytes,
    const BindOptions& options) {
  Bound bound{Descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  if (!bound.socket.open()) {
    return {Descriptor(), errno};
  }
  const int reuse = options.reuse_address ? 1 : 0;
  ::setsockopt(
      bound.socket.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  bound.error = ::bind(bound.socket.get(), address, bytes) == 0 ? 0 : errno;
  return bound;
}

// Binds the wildcard address; where there is IPv6, its address also stands for IPv4.
Bound bind_wildcard(const BindOptions& options) {
  const auto port = htons(static_cast<std::uint16_t>(options.port));
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = port;
  auto bound = bind_to(
      AF_INET6, reinterpret_cast<const sockaddr*>(&v6), sizeof v6, options);
  if (bound.error != EAFNOSUPPORT && bound.error != EADDRNOTAVAIL) {
    return bound;
  }
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = port;
  return bind_to(
      AF_INET, reinterpret_cast<const sockaddr*>(&v4), sizeof v4, options);
}

}  // namespace

Status check_port_free(int port) {
  const int error = bind_wildcard({.port = port, .reuse_address = true}).error;
  if (error == EADDRINUSE) {
    return Status(
        ErrorCode::kUnavailable,
        str("port ", port,
            " is in use by another process; choose "
            "another with --port, or leave it out to get a free one"));
  }
  if (error != 0) {
    return Status(
        ErrorCode::kUnavailable,
        str("port ", port, " cannot be used: ", std::strerror(error)));
  }
  return {};
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
    auto bound = bind_wildcard({.port = port});
    error = bound.error;
    const int on = 1;
    if (error != 0) {
      continue;
    }
    if (::setsockopt(
            bound.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ==
        0) {
      return ReservedPort{port, std::move(bound.socket)};
    }
    error = errno;
  }
  return Status(
      ErrorCode::kUnavailable,
      str("expected a free port, found none in ", kTries,
          " tries; the last answer: ", std::strerror(error)));
}

}  // namespace sherd::launch
