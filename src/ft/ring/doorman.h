// SPDX-License-Identifier: Apache-2.0
//
// Doorman keeps connections of whom nobody knows yet who they are, until they
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
#include "ft/ring/link.h"
#include "ft/ring/ring_types.h"

namespace sherd::ft::ring {

struct Caller {
  Link link;
  Epoch epoch;
  Hello hello;
};

class Doorman {
 public:
  // `options` and `counters` outlive it.
  Doorman(const RingOptions& options, RingCounters& counters)
      : options_(options), counters_(counters) {}

  // All that wait at the listener, at most a few in a turn.
  void let_in(int listener, Instant now);
  // For a moment, when there was no descriptor left: they wait in the kernel.
  bool lets_in(Instant now) const { return now >= closed_until_; }
  void advance(Instant now);

  enum class Answer {
    kWait,  // Not yet.
    kDone,  // The caller's link was taken, or it was refused.
  };
  // Shows each caller that has said who it is. REQUIRES: `decide` does not call
  // the doorman.
  template <typename Decide>
  void show(Decide&& decide) {
    std::erase_if(guests_, [&](Guest& guest) {
      return guest.caller && decide(*guest.caller) == Answer::kDone;
    });
  }

  void polls(std::vector<pollfd>& list) const;
  std::optional<Instant> next_instant() const;

 private:
  struct Guest {
    std::optional<Link> link;      // Until it has said who it is.
    std::optional<Caller> caller;  // From then on.
    Instant until{};
  };
  // Whether to drop it.
  bool listen_to(Guest& guest, Instant now);
  void make_room();

  const RingOptions& options_;
  RingCounters& counters_;
  std::deque<Guest> guests_;  // Oldest first.
  Instant closed_until_{};
};

}  // namespace sherd::ft::ring
