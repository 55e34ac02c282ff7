// SPDX-License-Identifier: Apache-2.0
//
// GracefulClose sends the last words on connections that are given up, without
// anybody waiting for it: a frame cut short would look like a death, and a socket
// closed with bytes unread makes the kernel throw away what was sent. After a
// fraction of a second they are closed in any case. Thread rule: one thread.
#pragma once

#include <poll.h>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>
#include "base/clock.h"
#include "ft/ring/framed_socket.h"

namespace sherd::ft::ring {

class GracefulClose {
 public:
  // As much as goes is sent at once. The oldest is closed when there are many.
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
  // Whether it is over.
  static bool step(ClosingSocket& socket);
  std::deque<ClosingSocket> closing_;
};

}  // namespace sherd::ft::ring
