// SPDX-License-Identifier: Apache-2.0
//
// Waits for counters of other ranks: spins briefly, then sleeps in slices, and checks between them
// whether all ranks are alive, so that no wait is endless. Thread rule: any thread; a value that
// refers to peers and clock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include "base/clock.h"
#include "base/status.h"
#include "shm/counter.h"
#include "shm/peers.h"

namespace sherd::shm {

struct WaitOptions {
  // ---- behaviour ----
  // How long the awaited rank may make no progress on the counter.
  Duration deadline = std::chrono::seconds(60);
  // ---- performance ----
  // How long to spin before sleeping: spinning saves the wake-up, about 50 us on an idle core, but
  // occupies the core, so use 0 if ranks share cores.
  Duration spin = std::chrono::microseconds(20);
};

// The awaited rank, and the words for it in an error. Allocates nothing.
struct WaitTarget {
  int rank = 0;
  std::string_view what{};   // "the gradients of unit".
  std::int64_t number = -1;  // The unit; negative if there is none.
  // Also ends the wait, within milliseconds: it signals that waiting is in vain.
  std::optional<Counter> cancel_counter{};
  std::uint64_t cancel_value = 0;
  // Called every few milliseconds while the wait sleeps, if it is set.
  const std::function<void()>* meanwhile = nullptr;
};

class Waiter {
 public:
  // `peers` and `clock` must outlive it.
  Waiter(Peers& peers, const Clock& clock, const WaitOptions& options)
      : peers_(&peers), clock_(&clock), options_(options) {}

  Peers& peers() const { return *peers_; }

  // Waits until `counter` has reached `value`, or awaited.cancel_counter its own; then the outcome
  // is ok, no matter which ranks have died. Otherwise returns within milliseconds the first trouble
  // of any rank, naming it; kPeerLost if the awaited rank has left without reaching `value`; and
  // kDeadlineExceeded if it is silent beyond the deadline: "rank 2 is not responding", naming the
  // rank that it waits for itself, if any. Every other wait on the segment then ends with this
  // error, too. REQUIRES: awaited.rank is another rank.
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
