// SPDX-License-Identifier: Apache-2.0
//
// How a rank that catches up fetches snapshots and gradient sums from the TransferServers of its
// counterparts in other replicas, the donors. Each chunk is checked against its digest. Thread
// rule: their loop.
//
// A failure names a donor, and its code says why:
//   kFailedPrecondition  it does not have what was requested; the sentence says what it has.
//                        Another state or another donor may do.
//   kPeerMismatch        another run or rank, or its bytes are damaged or too many.
//   kUnavailable         it cannot be reached, or is too busy.
//   kPeerLost, kDeadlineExceeded  it has died, or no longer answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>
#include "base/clock.h"
#include "base/status.h"
#include "ft/protocol/messages.h"
#include "net/host_address.h"
#include "net/loop.h"
#include "net/security.h"

namespace sherd::ft {

struct FetchOptions {
  // ---- behaviour ----
  std::uint64_t run = 0;
  int shard_rank = 0;
  net::Security security{};
  // A donor that is silent for this long is given up.
  Duration timeout_without_progress = std::chrono::seconds(5);
  // How long sent bytes may stay unacknowledged before the donor counts as lost.
  Duration user_timeout = std::chrono::seconds(5);
  // How long a donor may take to offer a snapshot, which needs a step and a copy; and how long the
  // other donors may take after the first answer.
  Duration snapshot_timeout = std::chrono::seconds(60);
  Duration others_timeout = std::chrono::seconds(1);
  // How long a donor may take to have a sum; with 0, a donor refuses if it does not have the sum.
  Duration sum_timeout{0};
  // Anything larger is refused before memory is reserved for it. Reserved memory costs nothing until
  // bytes arrive.
  std::uint64_t bytes_max = std::numeric_limits<std::uint64_t>::max();
};

// A fetch under way. Destroying it cancels it; then `done` is not called.
class Fetch {
 public:
  struct Impl;
  explicit Fetch(std::shared_ptr<Impl> impl);  // For the functions below.
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;
  ~Fetch();

  // Whether a donor has what was requested, so that bytes are arriving.
  bool answered() const;

 private:
  const std::shared_ptr<Impl> impl_;
};

// Each of these calls `done` once, later, from the loop; `done` may destroy the Fetch. The loop
// must outlive it.

// Makes a donor's rank 0 take a snapshot of its replica, unless there is a recent one, and returns
// the snapshot's state.
std::unique_ptr<Fetch> ask_snapshot(
    net::Loop& loop,
    const net::HostAddress& donor,
    const FetchOptions& options,
    std::function<void(Result<StateId>)> done);

// Fetches this rank's part of that snapshot from all donors at once, and waits until they offer it.
// A lost donor costs only the chunks that it had not delivered. If donors have different bytes, it
// logs a warning and takes those of the majority. Fails if no donor is left.
std::unique_ptr<Fetch> fetch_snapshot(
    net::Loop& loop,
    const std::vector<net::HostAddress>& donors,
    const FetchOptions& options,
    const StateId& state,
    std::function<void(Result<std::string>)> done);

// A rank's part of the sum of a step.
struct CommittedSum {
  Commit commit;
  std::shared_ptr<const std::string> bytes;
};

// Fetches this rank's part of the sum that was committed on `base`. The commit is as the donor
// reports it, to be compared with what was committed.
std::unique_ptr<Fetch> fetch_sum(
    net::Loop& loop,
    const net::HostAddress& donor,
    const FetchOptions& options,
    const StateId& base,
    std::function<void(Result<CommittedSum>)> done);

}  // namespace sherd::ft
