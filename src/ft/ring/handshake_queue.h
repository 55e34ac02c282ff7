// SPDX-License-Identifier: Apache-2.0
//
// HandshakeQueue sends each accepted connection a challenge and holds it until its handshake has
// been read. It also holds connections for an epoch that this rank does not know yet, because a
// peer may be faster than the coordinator's message. Both are limited in number and time. Thread
// rule: one thread.
#pragma once

#include <poll.h>
#include <deque>
#include <optional>
#include <string>
#include <vector>
#include "base/clock.h"
#include "base/log.h"
#include "ft/ring/frame.h"
#include "ft/ring/framed_socket.h"
#include "ft/ring/ring_types.h"

namespace sherd::ft::ring {

class HandshakeQueue {
 public:
  struct IncomingPeer {
    FramedSocket link;
    std::uint64_t challenge = 0;  // Has to be in its proof.
    Instant until{};              // Until when the queue holds it.
    bool spoke = false;           // Its handshake has arrived:
    Epoch epoch{};
    Handshake handshake{};
  };

  // `options` and `counters` must outlive it.
  HandshakeQueue(const RingOptions& options, RingCounters& counters)
      : options_(options), counters_(counters) {}

  // Accepts connections that wait at the listener, a few at a time.
  void accept_waiting(int listener, Instant now);
  // False for a moment after descriptors have run out: connections then wait in the kernel.
  bool accepts(Instant now) const { return now >= closed_until_; }
  void advance(Instant now);

  enum class Disposition {
    kWait,  // Keep the connection for now.
    kDone,  // The connection was taken or refused.
  };
  // Calls `decide` for each connection whose handshake has arrived. REQUIRES: `decide` does not
  // call the queue.
  template <typename Decide>
  void decide_ready(Decide&& decide) {
    std::erase_if(pending_, [&](IncomingPeer& peer) {
      return peer.spoke && decide(peer) == Disposition::kDone;
    });
  }

  void polls(std::vector<pollfd>& list) const;
  std::optional<Instant> next_instant() const;

 private:
  // Each returns whether to drop the connection.
  bool advance(IncomingPeer& peer, Instant now);
  bool has_spoken_again(IncomingPeer& peer);
  bool read_handshake(IncomingPeer& peer, Instant now);
  // Always true.
  bool refuse(const FramedSocket& link, Instant now);
  void warn(const FramedSocket& link, Instant now, const std::string& what);
  void evict_oldest(Instant now);

  const RingOptions& options_;
  RingCounters& counters_;
  LimitedLog log_;
  std::deque<IncomingPeer> pending_;  // Oldest first.
  Instant closed_until_{};
};

}  // namespace sherd::ft::ring
