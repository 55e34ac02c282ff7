// SPDX-License-Identifier: Apache-2.0
//
// Dial makes one connection; Redial keeps one: it dials again whenever the
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

struct DialOptions {
  // Behaviour.
  Security security{};
  ConnectionOptions connection{};
  // From the name to the peer's greeting.
  Duration timeout = std::chrono::seconds(5);
};

class Dial {
 public:
  using Done = std::function<void(Result<std::unique_ptr<Connection>>)>;
  // `done` hears once, later, from the loop: a connection to be started, or why
  // there is none. Throws Error for an IP address beyond this host without
  // security (for a name `done` hears it), and for secrets and files that
  // cannot be used. The loop outlives it.
  Dial(
      Loop& loop,
      const HostAddress& address,
      const DialOptions& options,
      Done done);
  Dial(const Dial&) = delete;
  Dial& operator=(const Dial&) = delete;
  // Gives up, and `done` hears nothing.
  ~Dial();

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

struct RedialOptions {
  // Behaviour.
  DialOptions dial{};
  // Between two tries: doubles from min to max, and begins anew with a
  // connection.
  Duration back_off_min = std::chrono::milliseconds(50);
  Duration back_off_max = std::chrono::seconds(2);
};

struct RedialHandlers {
  // There is a connection, started already: connection() is it.
  std::function<void()> on_connected;
  std::function<void(Frame frame)> on_frame;
  // It has ended; another one will be tried.
  std::function<void(const Status& reason)> on_lost;
  // A try has failed; may be empty.
  std::function<void(const Status& reason)> on_failed{};
};

class Redial {
 public:
  // Dials at once. `random` is asked before each wait. Throws as Dial does.
  Redial(
      Loop& loop,
      const HostAddress& address,
      const RedialOptions& options,
      std::function<std::uint64_t()> random,
      RedialHandlers handlers);
  Redial(const Redial&) = delete;
  Redial& operator=(const Redial&) = delete;
  // Closes the connection, and no handler is called any more.
  ~Redial();

  // Null while there is none. Whoever closes it, on_lost hears of it.
  Connection* connection();

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace sherd::net
