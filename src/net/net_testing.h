// SPDX-License-Identifier: Apache-2.0
//
// What the tests of connections share: a loop that runs until something has
// happened, a server with one client, sockets of strangers, certificates. Thread
// rule: one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>
#include "base/descriptor.h"
#include "net/connector.h"
#include "net/listener.h"

namespace sherd::net::testing {

// Runs the loop until the predicate holds; false after `limit`.
bool run_until(
    Loop& loop,
    const std::function<bool()>& predicate,
    Duration limit = std::chrono::seconds(20));
// For so long, to see that something does not happen.
void run_for(Loop& loop, Duration time);

// One end of a connection, with all that it hears.
struct TestEndpoint {
  std::unique_ptr<Connection> connection;
  std::vector<Frame> frames;
  std::vector<Status> closed;

  void start(std::unique_ptr<Connection> its);
  bool is_closed() const { return !closed.empty(); }
  // "": it is not.
  std::string reason() const {
    return closed.empty() ? "" : closed.front().message();
  }
};

// A listener on loopback that keeps whom it accepts.
struct TestServer {
  explicit TestServer(Loop& loop, const ListenerOptions& options = {});
  TestServer(
      Loop& loop, const ListenerOptions& options, const HostAddress& address);

  std::unique_ptr<Listener> listener;
  std::vector<std::unique_ptr<TestEndpoint>>
      ends;  // In the order of their greetings.
  std::vector<std::string> refused;
};

// Dials until it knows; a failure's message, or "".
std::string dial(
    Loop& loop,
    const HostAddress& address,
    TestEndpoint& end,
    const ConnectorOptions& options = {});

// A server and a client, connected. The test fails if they cannot be.
struct ConnectedPair {
  explicit ConnectedPair(
      Loop& loop,
      const ConnectionOptions& options = {},
      const Security& security = {});
  TestServer server;
  TestEndpoint client;
  TestEndpoint& accepted() { return *server.ends.at(0); }
};

// What a dialling side sends first.
std::string greeting();

// A socket of somebody who knows nothing of frames.
class RawClient {
 public:
  // Connected to a port of 127.0.0.1; the other side need not accept yet.
  explicit RawClient(std::uint16_t port);
  void send(std::string_view bytes) const;
  void end_writing() const;
  // Its side's end has come; what came before is in `heard`.
  bool ended(std::string& heard) const;
  void close() { socket_.close(); }

 private:
  Descriptor socket_;
};

// Stands between a client and a listener on 127.0.0.1, for one connection, and
// sees all that goes by.
class RecordingProxy {
 public:
  explicit RecordingProxy(std::uint16_t listener_port);
  HostAddress address() const { return address_; }
  // Moves what has come; to be called again and again.
  void pump();

  std::string to_listener;
  std::string to_client;
  // May change what goes to the listener.
  std::function<void(std::string& bytes)> change;

 private:
  const std::uint16_t listener_port_;
  HostAddress address_;
  Descriptor socket_;
  Descriptor client_;
  Descriptor listener_;
};

// A port that is taken, and on which nobody listens.
class UnusedPort {
 public:
  UnusedPort();
  HostAddress address() const { return address_; }

 private:
  HostAddress address_;
  Descriptor socket_;
};

// A listening socket that never accepts or says anything.
class SilentHost {
 public:
  SilentHost();
  HostAddress address() const { return address_; }

 private:
  HostAddress address_;
  Descriptor socket_;
};

// Writes NAME.pem and NAME.key into the folder, with NAME-ca.pem of a new
// authority that signed it.
TlsFiles make_certificate(
    const std::string& folder,
    const std::string& name,
    PeerRole role = PeerRole::kReplica);
// Another one of the same authority.
TlsFiles make_certificate_of(
    const std::string& folder,
    const std::string& name,
    const std::string& of,
    PeerRole role = PeerRole::kReplica);

}  // namespace sherd::net::testing
