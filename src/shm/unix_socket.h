// SPDX-License-Identifier: Apache-2.0
//
// Connections between two processes of one host and one user, which can hand each other
// descriptors. Addresses are abstract: they vanish with the listener, and no file is made.
// Messages are short and arrive whole. Thread rule: one thread each.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/status.h"

namespace sherd::shm {

struct UnixMessage {
  std::string text{};
  Descriptor descriptor{};  // Not open when none came with the text.
};

// One end of a connection.
class UnixConnection {
 public:
  static constexpr std::size_t kTextMax = 1024;

  // kUnavailable when nobody listens at `address`, kPeerMismatch when another
  // user does, kDeadlineExceeded when it is `until`.
  static Result<UnixConnection> connect(
      const std::string& address, const Clock& clock, Instant until);

  explicit UnixConnection(Descriptor socket) : socket_(std::move(socket)) {}

  // Never waits. Passes a copy of `descriptor` unless it is negative. A text
  // longer than kTextMax is cut. kPeerLost when the other end has closed.
  Status send(std::string_view text, int descriptor = -1);

  // The next message, or nothing yet. kPeerLost when the other end has closed
  // and everything it sent was received.
  Result<std::optional<UnixMessage>> try_receive();

  // Waits for the next message; kDeadlineExceeded when it is `until`.
  Result<UnixMessage> receive(const Clock& clock, Instant until);

  // For poll().
  int descriptor() const { return socket_.get(); }

 private:
  Descriptor socket_;
};

class UnixListener {
 public:
  // At a new address that cannot be guessed.
  static Result<UnixListener> open();

  const std::string& address() const { return address_; }
  int descriptor() const { return socket_.get(); }  // For poll().

  // The next connection of a process of this user, or nothing yet. Those of
  // other users are closed.
  Result<std::optional<UnixConnection>> try_accept();

 private:
  UnixListener(Descriptor socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}

  Descriptor socket_;
  std::string address_;
};

}  // namespace sherd::shm
