// SPDX-License-Identifier: Apache-2.0
//
// Non-blocking TCP sockets for code that moves bytes without a Connection, and the options that
// detect a lost peer. Thread rule: any thread.
#pragma once

#include <sys/socket.h>
#include <cstdint>
#include <span>
#include <string>
#include <vector>
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/status.h"
#include "net/host_address.h"

namespace sherd::net {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

// The addresses of a host, at least one, in the order in which the system wants them tried. Takes an
// IP address, or a name whose lookup may take a while.
Result<std::vector<SocketAddress>> addresses_of(
    const std::string& host, std::uint16_t port);
// The first of them.
Result<SocketAddress> resolve(const std::string& host, std::uint16_t port);

struct ListeningSocket {
  Descriptor socket;
  std::uint16_t port = 0;
  int family = AF_UNSPEC;
};
// On the first address that can be bound: a name may have one that this host lacks. Port 0 takes any
// free port. A port that only lingers after an earlier process counts as free. REQUIRES: there is
// an address.
Result<ListeningSocket> listen_on(std::span<const SocketAddress> addresses);
// On a free port of the host.
Result<ListeningSocket> listen_on(const std::string& host);

// Sets when a silent or hanging peer is noticed. A connection that was quiet for 2 s is probed, and
// then each second. Data in flight and probes are given up after the same user timeout: it takes the
// place of a number of probes. A longer time than the kernel knows stands for the longest that it
// does.
void set_peer_options(int socket, Duration user_timeout);

// Begins to connect; the socket becomes writable when the attempt has ended.
Result<Descriptor> begin_connect(const SocketAddress& address);
// 0, or the error number of the attempt.
int connect_error(int socket);

// "10.0.0.7" and 52133; without a host if the address is none.
HostAddress numeric(const SocketAddress& address);
// "10.0.0.7:52133" or "[::1]:52133", for messages.
std::string peer_of(int socket);

}  // namespace sherd::net
