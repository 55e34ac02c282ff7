// SPDX-License-Identifier: Apache-2.0
//
// Connections between two processes of one host and one user that can pass each other descriptors.
// Addresses are abstract: they vanish with the listener, and no file is created. Messages are short
// and arrive whole. Thread rule: one thread each.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/status.h"

namespace sherd::shm {

// One end of a connection.
class UnixConnection {
 public:
  static constexpr std::size_t kTextMax = 1024;
  struct Message {
    std::string text{};
    Descriptor descriptor{};  // Not open if none came with the text.
  };

  // kUnavailable if nobody listens at `address`, kPeerMismatch if another user does,
  // kDeadlineExceeded at `until`, kFailedPrecondition if this process can have no further socket.
  static Result<UnixConnection> connect(
      const std::string& address, const Clock& clock, Instant until);

  explicit UnixConnection(Descriptor socket) : socket_(std::move(socket)) {}

  // Never waits. Passes a copy of `descriptor` unless it is negative. A text longer than kTextMax
  // is truncated. kPeerLost if the other end has closed.
  Status send(std::string_view text, int descriptor = -1);

  // The next message, or nothing if none has arrived. kPeerLost if the other end has closed and
  // everything that it sent was received.
  Result<std::optional<Message>> try_receive();

  // Waits for the next message; kDeadlineExceeded at `until`.
  Result<Message> receive(const Clock& clock, Instant until);

  // For poll().
  int descriptor() const { return socket_.get(); }

 private:
  Descriptor socket_;
};

class UnixListener {
 public:
  // Listens at a new address that cannot be guessed.
  static Result<UnixListener> open();

  const std::string& address() const { return address_; }
  int descriptor() const { return socket_.get(); }  // For poll().

  // The next connection of a process of this user, or nothing if there is none yet. Connections of
  // other users are closed.
  Result<std::optional<UnixConnection>> try_accept();

 private:
  UnixListener(Descriptor socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}

  Descriptor socket_;
  std::string address_;
};

}  // namespace sherd::shm
