// SPDX-License-Identifier: Apache-2.0
//
// Connector makes one connection; ReconnectingClient keeps one: it dials again whenever the
// connection has ended or could not be made. Their owner may destroy them
// whenever it likes, also in their handlers. Thread rule: their loop.
#pragma once

#include <chrono>
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

struct ConnectorOptions {
  // Behaviour.
  Security security{};
  ConnectionOptions connection{};
  // From the name to the peer's greeting.
  Duration timeout = std::chrono::seconds(5);
};

class Connector {
 public:
  using Done = std::function<void(Result<std::unique_ptr<Connection>>)>;
  // `done` hears once, later, from the loop: a connection to be started, or why
  // there is none. Throws Error for an IP address beyond this host without
  // security (for a name `done` hears it), and for secrets and files that
  // cannot be used. The loop outlives it.
  Connector(
      Loop& loop,
      const HostAddress& address,
      const ConnectorOptions& options,
      Done done);
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;
  // Gives up, and `done` hears nothing.
  ~Connector();

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

struct ReconnectingClientOptions {
  // Behaviour.
  ConnectorOptions dial{};
  // Between two tries: doubles from min to max, and begins anew with a
  // connection.
  Duration back_off_min = std::chrono::milliseconds(50);
  Duration back_off_max = std::chrono::seconds(2);
};

struct ReconnectingClientHandlers {
  // There is a connection, started already: connection() is it.
  std::function<void()> on_connected;
  std::function<void(Frame frame)> on_frame;
  // It has ended; another one will be tried.
  std::function<void(const Status& reason)> on_lost;
  // A try has failed; may be empty.
  std::function<void(const Status& reason)> on_failed{};
};

class ReconnectingClient {
 public:
  // Dials at once. `random` is asked before each wait. Throws as Connector does.
  ReconnectingClient(
      Loop& loop,
      const HostAddress& address,
      const ReconnectingClientOptions& options,
      std::function<std::uint64_t()> random,
      ReconnectingClientHandlers handlers);
  ReconnectingClient(const ReconnectingClient&) = delete;
  ReconnectingClient& operator=(const ReconnectingClient&) = delete;
  // Closes the connection, and no handler is called any more.
  ~ReconnectingClient();

  // Null while there is none. Whoever closes it, on_lost hears of it.
  Connection* connection();

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace sherd::net
