// SPDX-License-Identifier: Apache-2.0
//
// HandshakeQueue keeps connections of whom nobody knows yet who they are, until they
// have said so, and those that came for an epoch this rank has not heard of: a
// peer may be faster than the coordinator's word. There is a bound on both,
// in number and in time. Thread rule: one thread.
#pragma once

#include <poll.h>
#include <deque>
#include <optional>
#include <vector>
#include "base/clock.h"
#include "base/descriptor.h"
#include "ft/ring/frame.h"
#include "ft/ring/framed_socket.h"
#include "ft/ring/ring_types.h"

namespace sherd::ft::ring {

struct IncomingPeer {
  FramedSocket link;
  Epoch epoch;
  Handshake handshake;
};

class HandshakeQueue {
 public:
  // `options` and `counters` outlive it.
  HandshakeQueue(const RingOptions& options, RingCounters& counters)
      : options_(options), counters_(counters) {}

  // All that wait at the listener, at most a few in a turn.
  void accept_waiting(int listener, Instant now);
  // For a moment, when there was no descriptor left: they wait in the kernel.
  bool accepts(Instant now) const { return now >= closed_until_; }
  void advance(Instant now);

  enum class Disposition {
    kWait,  // Not yet.
    kDone,  // The caller's link was taken, or it was refused.
  };
  // Shows each caller that has said who it is. REQUIRES: `decide` does not call
  // the handshake_queue.
  template <typename Decide>
  void decide_ready(Decide&& decide) {
    std::erase_if(pending_, [&](PendingHandshake& pending) {
      return pending.caller && decide(*pending.caller) == Disposition::kDone;
    });
  }

  void polls(std::vector<pollfd>& list) const;
  std::optional<Instant> next_instant() const;

 private:
  struct PendingHandshake {
    std::optional<FramedSocket> link;      // Until it has said who it is.
    std::optional<IncomingPeer> caller;  // From then on.
    Instant until{};
  };
  // Whether to drop it.
  bool read_handshake(PendingHandshake& pending, Instant now);
  void evict_oldest();

  const RingOptions& options_;
  RingCounters& counters_;
  std::deque<PendingHandshake> pending_;  // Oldest first.
  Instant closed_until_{};
};

}  // namespace sherd::ft::ring
