// SPDX-License-Identifier: Apache-2.0
//
// Connector makes one connection. ReconnectingClient keeps one: it connects again whenever the
// connection has ended or could not be made. Their owner may destroy them at any time, even in
// their handlers. Thread rule: their loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "base/backoff.h"
#include "base/clock.h"
#include "base/status.h"
#include "net/connection.h"
#include "net/host_address.h"
#include "net/loop.h"
#include "net/security.h"

namespace sherd::net {

struct ConnectorOptions {
  // ---- behaviour ----
  Security security{};
  ConnectionOptions connection{};
  // The limit for name look-up, connecting and greeting together. To connect, each address of a name
  // gets an equal share of what is left, so that a silent one does not hide the others.
  Duration timeout = std::chrono::seconds(5);
  // The IP addresses of the host, tried in this order. Empty: the system looks its name up.
  std::vector<std::string> addresses{};
};

class Connector {
 public:
  using Done = std::function<void(Result<ConnectionHandle>)>;
  // `done` is called once, later, from the loop, with a connection to start or the failure. Throws
  // Error for an IP address outside this host without security (for a name, `done` gets the error),
  // and for unusable secrets and files. The loop must outlive it.
  Connector(
      Loop& loop,
      const HostAddress& address,
      const ConnectorOptions& options,
      Done done);
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;
  // Gives up; `done` is not called.
  ~Connector();

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

struct ReconnectingClientOptions {
  // ---- behaviour ----
  ConnectorOptions dial{};
  // The waits between attempts; they begin again after a connection.
  BackoffOptions backoff{
      .first = std::chrono::milliseconds(50),
      .longest = std::chrono::seconds(2)};
};

struct ReconnectingClientHandlers {
  // connection() exists and is started.
  std::function<void()> on_connected;
  std::function<void(Frame frame)> on_frame;
  // The connection has ended; it will try to connect again.
  std::function<void(const Status& reason)> on_lost;
  // An attempt has failed; the handler may be empty.
  std::function<void(const Status& reason)> on_failed{};
};

class ReconnectingClient {
 public:
  // Connects at once. `random` supplies the jitter of each wait. Throws as Connector does.
  ReconnectingClient(
      Loop& loop,
      const HostAddress& address,
      const ReconnectingClientOptions& options,
      std::function<std::uint64_t()> random,
      ReconnectingClientHandlers handlers);
  ReconnectingClient(const ReconnectingClient&) = delete;
  ReconnectingClient& operator=(const ReconnectingClient&) = delete;
  // Closes the connection; no handler is called any more.
  ~ReconnectingClient();

  // Null if there is no connection. on_lost is called no matter which side closes it.
  Connection* connection();

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace sherd::net
