// SPDX-License-Identifier: Apache-2.0
//
// Listener accepts connections at an address. Strangers, peers with another
// secret and those that say nothing never get as far as its owner: they are
// closed with a reason, and their number is limited. Thread rule: its loop.
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
  // Until both sides know each other.
  Duration greeting_timeout = std::chrono::seconds(5);
  // Connections that have not come so far; one more closes the oldest, so that
  // silent ones keep nobody out.
  std::size_t unfinished_max = 64;
};

struct ListenerHandlers {
  // To be started.
  std::function<void(std::unique_ptr<Connection>)> on_connection;
  // Why somebody was turned away, or could not be accepted. May be empty.
  std::function<void(const Status& reason)> on_refused{};
};

class Listener {
  struct Impl;
  struct Private {};

 public:
  // Port 0: any that is free. A failure when the address cannot be had. Throws
  // Error for an address beyond this host without security, and for secrets and
  // files that cannot be used. The loop outlives the listener.
  static Result<std::unique_ptr<Listener>> listen(
      Loop& loop,
      const HostAddress& address,
      const ListenerOptions& options,
      ListenerHandlers handlers);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  // Listens no more; connections that were handed over go on. Also in its own
  // handlers.
  ~Listener();

  // With the port that it has.
  HostAddress address() const;
  // How many were turned away.
  std::uint64_t refused() const;

  Listener(Private, std::shared_ptr<Impl> impl);  // For listen().

 private:
  const std::shared_ptr<Impl> impl_;
};

}  // namespace sherd::net
