// SPDX-License-Identifier: Apache-2.0
//
// Listener accepts connections at an address and hands over those that have passed the handshake.
// Unknown clients, peers with another secret and silent ones are closed with a reason, which is
// logged at most once a second, and their number is limited. Thread rule: its loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include "base/clock.h"
#include "base/status.h"
#include "net/connection.h"
#include "net/host_address.h"
#include "net/loop.h"
#include "net/security.h"

namespace sherd::net {

struct ListenerOptions {
  // ---- behaviour ----
  Security security{};
  ConnectionOptions connection{};
  // The time limit for exchanging greetings.
  Duration greeting_timeout = std::chrono::seconds(5);
  // How many connections may be unfinished. One more evicts the oldest, so that silent clients do
  // not keep others out.
  std::size_t unfinished_max = 64;
};

struct ListenerHandlers {
  // Receives a connection, which it must start.
  std::function<void(ConnectionHandle)> on_connection;
  // Why a client was refused or could not be accepted. May be empty.
  std::function<void(const Status& reason)> on_refused{};
};

class Listener {
  struct Impl;

 public:
  // Port 0 takes any free port. Fails if the address is not available. Throws Error for an address
  // outside this host without security, and for unusable secrets and files. The loop must outlive
  // the listener.
  static Result<std::unique_ptr<Listener>> listen(
      Loop& loop,
      const HostAddress& address,
      const ListenerOptions& options,
      ListenerHandlers handlers);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  // Stops listening; connections that were handed over stay open. May be called in its own
  // handlers.
  ~Listener();

  // Includes the port that was bound.
  HostAddress address() const;

  explicit Listener(std::shared_ptr<Impl> impl);  // For listen().

 private:
  const std::shared_ptr<Impl> impl_;
};

}  // namespace sherd::net
