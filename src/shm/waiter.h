// SPDX-License-Identifier: Apache-2.0
//
// Waits for counters of other ranks: spins briefly, then sleeps in slices, and checks between them
// whether all ranks are alive, so that no wait is endless. Thread rule: any thread; a value that
// refers to peers and clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include "base/clock.h"
#include "base/status.h"
#include "shm/counter.h"
#include "shm/peers.h"

namespace sherd::shm {

struct WaitOptions {
  // Behaviour. How long the awaited rank may make no progress on the counter.
  Duration deadline = std::chrono::seconds(60);
  // Performance. How long to spin before sleeping: saves the wake-up, some
  // 50 us on an idle core, and costs the core, so 0 where ranks share cores.
  Duration spin = std::chrono::microseconds(20);
};

// The rank that is waited for, and the words for it in an error. Allocates nothing.
struct WaitTarget {
  int rank = 0;
  std::string_view what{};   // "the gradients of unit".
  std::int64_t number = -1;  // The unit; negative: none.
  // Ends the wait, too, within milliseconds: a sign that waiting is in vain.
  std::optional<Counter> cancel_counter{};
  std::uint64_t cancel_value = 0;
};

class Waiter {
 public:
  // `peers` and `clock` must outlive it.
  Waiter(Peers& peers, const Clock& clock, const WaitOptions& options)
      : peers_(&peers), clock_(&clock), options_(options) {}

  Peers& peers() const { return *peers_; }

  // Waits until `counter` has reached `value`, or awaited.cancel_counter its own; then the
  // outcome is ok, whoever has died. Else within milliseconds the first trouble of any rank,
  // naming it; kPeerLost when the awaited rank has left without reaching `value`; and
  // kDeadlineExceeded when it is silent beyond the deadline: "rank 2 is not responding", naming
  // the rank that it waits for itself, if so; every other wait on the segment then ends with this
  // too.
  // REQUIRES: awaited.rank is another rank.
  Status wait(
      Counter counter, std::uint64_t value, const WaitTarget& awaited) const;

 private:
  bool spin(Counter counter, std::uint64_t value) const;
  Status wait_asleep(
      Counter counter, std::uint64_t value, const WaitTarget& awaited) const;
  Status describe(
      const Status& trouble,
      std::uint64_t found,
      std::uint64_t value,
      const WaitTarget& awaited) const;

  Peers* peers_;
  const Clock* clock_;
  WaitOptions options_;
};

}  // namespace sherd::shm
