// SPDX-License-Identifier: Apache-2.0
//
// Listener accepts connections at an address and hands over those that have passed the handshake.
// Unknown clients, peers with another secret and silent ones are closed with a reason, which is
// logged, once a second at most, and their number is limited. Thread rule: its loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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
  // Behaviour.
  Security security{};
  ConnectionOptions connection{};
  // Until the greetings have been exchanged.
  Duration greeting_timeout = std::chrono::seconds(5);
  // Connections before that. One more evicts the oldest, so that silent clients keep nobody out.
  std::size_t unfinished_max = 64;
};

struct ListenerHandlers {
  // The connection is to be started.
  std::function<void(std::unique_ptr<Connection>)> on_connection;
  // Why a client was turned away or could not be accepted. May be empty.
  std::function<void(const Status& reason)> on_refused{};
};

class Listener {
  struct Impl;
  struct Private {};

 public:
  // Port 0 takes any that is free. Fails when the address cannot be had. Throws Error for an
  // address beyond this host without security, and for unusable secrets and files. The loop
  // outlives the listener.
  static Result<std::unique_ptr<Listener>> listen(
      Loop& loop,
      const HostAddress& address,
      const ListenerOptions& options,
      ListenerHandlers handlers);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  // Stops listening; connections that were handed over go on. May be called in its own handlers.
  ~Listener();

  // With the port that was bound.
  HostAddress address() const;
  // How many clients were turned away.
  std::uint64_t refused() const;

  Listener(Private, std::shared_ptr<Impl> impl);  // For listen().

 private:
  const std::shared_ptr<Impl> impl_;
};

}  // namespace sherd::net
