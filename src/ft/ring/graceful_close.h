// SPDX-License-Identifier: Apache-2.0
//
// GracefulClose shuts down sockets in the background: it sends what is left, and closes a socket
// when the peer has closed it or after a fraction of a second. A truncated frame would look like a
// death, and closing a socket with unread bytes makes the kernel discard what was sent. Thread
// rule: one thread.
#pragma once

#include <poll.h>
#include <cstddef>
#include <deque>
#include <optional>
#include <vector>
#include "base/clock.h"
#include "ft/ring/framed_socket.h"

namespace sherd::ft::ring {

class GracefulClose {
 public:
  // Sends as much as the socket takes at once. Closes the oldest socket if there are too many.
  void add(FramedSocket::Unsent rest);
  void advance(Instant now);
  void polls(std::vector<pollfd>& list) const;
  std::optional<Instant> next_instant() const;

 private:
  struct ClosingSocket {
    FramedSocket::Unsent rest;
    std::size_t sent = 0;
    bool said = false;
    std::optional<Instant> until;  // Counts from the next advance().
  };
  // Whether the socket is done.
  static bool step(ClosingSocket& socket);
  std::deque<ClosingSocket> closing_;
};

}  // namespace sherd::ft::ring
