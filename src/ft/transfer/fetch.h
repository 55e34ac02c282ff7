// SPDX-License-Identifier: Apache-2.0
//
// What a rank that catches up fetches from its counterparts in other replicas, its
// donors: their TransferServers answer. Bytes are what a donor offered, or there
// are none: each chunk is checked. Thread rule: their loop.
//
// Why there are none is told by the code, and names a donor:
//   kFailedPrecondition  it has not what was asked for; the sentence says what it
//                        has. Another state or another donor may do.
//   kPeerMismatch        another run or rank, bytes that are damaged or too many.
//   kUnavailable         nobody is there, or it has too much to do.
//   kPeerLost, kDeadlineExceeded  it has died, or says nothing any more.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  // Behaviour.
  std::uint64_t run = 0;
  int shard_rank = 0;
  net::Security security{};
  // A donor from which nothing has come for so long is given up.
  Duration timeout_without_progress = std::chrono::seconds(5);
  // How long a donor that is there may take until it has a snapshot: a step, and
  // a copy; and how long the others may take behind the first.
  Duration snapshot_timeout = std::chrono::seconds(60);
  Duration others_timeout = std::chrono::seconds(1);
  // How long a donor may take until it has a sum; 0: it has it, or refuses.
  Duration sum_timeout{0};
  // More is refused before memory is taken for it.
  std::size_t bytes_max = std::size_t{64} << 30U;
};

// Something that is being fetched. Destroying it ends that, and nobody is called.
class Fetch {
 public:
  struct Impl;
  explicit Fetch(std::shared_ptr<Impl> impl);  // For the functions below.
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;
  ~Fetch();

  // A donor has what was asked for: bytes are coming.
  bool answered() const;

 private:
  const std::shared_ptr<Impl> impl_;
};

// `done` of each hears once, later, from the loop; it may destroy the Fetch. The
// loop outlives it.

// Makes a donor's rank 0 take a snapshot of its replica, unless there is one of
// this moment, and says of which state it is.
std::unique_ptr<Fetch> ask_snapshot(
    net::Loop& loop,
    const net::HostAddress& donor,
    const FetchOptions& options,
    std::function<void(Result<StateId>)> done);

// A rank's part of that snapshot, of which every donor gives a part; waits until
// they have offered it. One that dies costs what it was asked for and had not
// given. Where donors do not have the same bytes, a warning says so, and those of
// most of them are taken. Fails when no donor is left.
std::unique_ptr<Fetch> fetch_snapshot(
    net::Loop& loop,
    const std::vector<net::HostAddress>& donors,
    const FetchOptions& options,
    const StateId& state,
    std::function<void(Result<std::string>)> done);

struct FetchedSum {
  Commit commit;  // As the donor says: to be compared with what was committed.
  std::string bytes;
};

// A rank's part of the sum that was committed on `base`.
std::unique_ptr<Fetch> fetch_sum(
    net::Loop& loop,
    const net::HostAddress& donor,
    const FetchOptions& options,
    const StateId& base,
    std::function<void(Result<FetchedSum>)> done);

}  // namespace sherd::ft
