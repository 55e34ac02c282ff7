// SPDX-License-Identifier: Apache-2.0
//
// What the tests of connections share: a loop that runs until something has happened, a server with
// one client, raw sockets, certificates. Thread rule: one thread.
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

// Runs the loop until the predicate holds; returns false after `limit`.
bool run_until(
    Loop& loop,
    const std::function<bool()>& predicate,
    Duration limit = std::chrono::seconds(20));
// Runs the loop for `time`, to show that something does not happen.
void run_for(Loop& loop, Duration time);

// One end of a connection, with everything that it receives.
struct TestEndpoint {
  ConnectionHandle connection;
  std::vector<Frame> frames;
  std::vector<Status> closed;

  void start(ConnectionHandle its);
  bool is_closed() const { return !closed.empty(); }
  // Empty if it is not closed.
  std::string reason() const {
    return closed.empty() ? "" : closed.front().message();
  }
};

// A listener on loopback that keeps its connections.
struct TestServer {
  explicit TestServer(Loop& loop, const ListenerOptions& options = {});
  TestServer(
      Loop& loop, const ListenerOptions& options, const HostAddress& address);

  std::unique_ptr<Listener> listener;
  std::vector<std::unique_ptr<TestEndpoint>>
      ends;  // In the order of their greetings.
  std::vector<std::string> refused;
};

// Connects until the outcome is known; returns the message of the failure, or "".
std::string dial(
    Loop& loop,
    const HostAddress& address,
    TestEndpoint& end,
    const ConnectorOptions& options = {});

// A connected server and client. The test fails if they cannot be connected.
struct ConnectedPair {
  explicit ConnectedPair(
      Loop& loop,
      const ConnectionOptions& options = {},
      const Security& security = {});
  TestServer server;
  TestEndpoint client;
  TestEndpoint& accepted() { return *server.ends.at(0); }
};

// What a connecting side sends first.
std::string greeting();

// A socket of a client that knows nothing of frames.
class RawClient {
 public:
  // Connects to a port of 127.0.0.1; the other side need not accept yet.
  explicit RawClient(std::uint16_t port);
  void send(std::string_view bytes) const;
  void end_writing() const;
  // Whether the other side has closed; `heard` has what it sent before.
  bool ended(std::string& heard) const;
  void close() { socket_.close(); }

 private:
  Descriptor socket_;
};

// Stands between a client and a listener on 127.0.0.1, for one connection, and sees all bytes that
// pass.
class RecordingProxy {
 public:
  explicit RecordingProxy(std::uint16_t listener_port);
  HostAddress address() const { return address_; }
  // Forwards what has arrived; must be called again and again.
  void pump();

  std::string to_listener;
  std::string to_client;
  // May change what is sent to the listener.
  std::function<void(std::string& bytes)> change;

 private:
  const std::uint16_t listener_port_;
  HostAddress address_;
  Descriptor socket_;
  Descriptor client_;
  Descriptor listener_;
};

// A port that is bound but on which nobody listens.
class UnusedPort {
 public:
  UnusedPort();
  HostAddress address() const { return address_; }

 private:
  HostAddress address_;
  Descriptor socket_;
};

// A listening socket that never accepts or sends anything.
class SilentHost {
 public:
  SilentHost();
  HostAddress address() const { return address_; }

 private:
  HostAddress address_;
  Descriptor socket_;
};

// A listening socket at 127.0.0.2 that does not even take connections: attempts to connect wait.
class UnansweringHost {
 public:
  explicit UnansweringHost(std::uint16_t port);
  static const char* ip() { return "127.0.0.2"; }

 private:
  Descriptor socket_;
  Descriptor client_;  // It fills the queue of connections to accept.
};

// Writes NAME.pem and NAME.key into the folder, with NAME-ca.pem of a new authority that signed it.
TlsFiles make_certificate(
    const std::string& folder,
    const std::string& name,
    PeerRole role = PeerRole::kReplica);
// Makes another certificate of the same authority.
TlsFiles make_certificate_of(
    const std::string& folder,
    const std::string& name,
    const std::string& of,
    PeerRole role = PeerRole::kReplica);
// Encrypts the private key in the file with that passphrase.
void encrypt_key(const std::string& path, std::string passphrase);

}  // namespace sherd::net::testing
