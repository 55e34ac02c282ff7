// SPDX-License-Identifier: Apache-2.0
#include "launch/port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <cerrno>
#include <cstring>
#include "base/descriptor.h"
#include "base/hash.h"

namespace sherd::launch {
namespace {

// 0, or the error number of binding the wildcard address.
int try_bind(int family, const sockaddr* address, socklen_t bytes) {
  const Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.open()) {
    return errno;
  }
  // As the store of rank 0 does: lingering connections do not count.
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return ::bind(socket.get(), address, bytes) == 0 ? 0 : errno;
}

}  // namespace

Status check_port_free(int port) {
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(static_cast<std::uint16_t>(port));
  // The IPv6 wildcard stands for IPv4 too, where there is IPv6.
  int error =
      try_bind(AF_INET6, reinterpret_cast<const sockaddr*>(&v6), sizeof v6);
  if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) {
    sockaddr_in v4 = {};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<std::uint16_t>(port));
    error =
        try_bind(AF_INET, reinterpret_cast<const sockaddr*>(&v4), sizeof v4);
  }
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

Result<int> find_free_port(std::uint64_t seed) {
  constexpr int kFirst = 20000;
  constexpr int kCount = 10000;
  constexpr int kTries = 100;
  const int start = static_cast<int>(mix64(seed) % kCount);
  Status last;
  for (int i = 0; i < kTries; ++i) {
    const int port = kFirst + (start + i) % kCount;
    last = check_port_free(port);
    if (last.ok()) {
      return port;
    }
  }
  return Status(
      ErrorCode::kUnavailable,
      str("expected a free port, found none in ", kTries,
          " tries; the last answer: ", last.message()));
}

}  // namespace sherd::launch
