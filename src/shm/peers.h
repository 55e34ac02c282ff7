// SPDX-License-Identifier: Apache-2.0
//
// The processes that share a segment, as each of them sees the others: which have died, left or
// given up. Their records and the first trouble lie in the segment, so all ranks name the same
// cause, also those that notice only its consequences. Thread rule: enter() and watch() on one
// thread before all others; else any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include "base/descriptor.h"
#include "base/status.h"
#include "shm/counter.h"

namespace sherd::shm {

// What a process writes about itself. Zeros: it has not come yet.
struct alignas(kCacheLine) PeerRecord {
  std::int32_t pid;
  std::uint32_t has_left;
  std::uint64_t start_ticks;    // Tells a recycled process id; 0: unknown.
  std::uint64_t pid_namespace;  // Process ids mean the same only within one.
  std::uint32_t awaits;         // 0, or 1 + the rank it sleeps for.
  std::uint32_t why_taken;      // A thread has begun to write `why`.
  std::uint32_t memory_revoked;
  std::array<char, 348> why;  // Why it gave up; ends with a zero.
};

struct alignas(kCacheLine) PeersHead {
  // 0, or the first trouble: what (8 bits), rank (28), who says so (28).
  std::uint64_t trouble;
};

struct PeersOptions {
  int rank = 0;  // Within the segment.
  int ranks = 1;
  // How messages name the ranks, in the segment's order; empty: by their place
  // in the segment.
  std::vector<int> names{};
};

class Peers {
 public:
  static std::size_t bytes(int ranks);

  // `memory` is Peers::bytes(ranks) of the segment, the same for everybody and
  // zeros when the first one comes. REQUIRES: 0 <= rank < ranks < 2^28.
  Peers(std::span<std::byte> memory, PeersOptions options);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Writes this process's record.
  void enter();
  // Starts to watch the others. REQUIRES: all have entered, and something that
  // orders memory told so. kFailedPrecondition where process ids differ,
  // kUnavailable where the kernel has no pidfds.
  Status watch();

  int rank() const { return options_.rank; }
  int ranks() const { return options_.ranks; }
  // How messages name `rank`, e.g. "rank 2".
  std::string name(int rank) const;

  // The first trouble of anybody, after a look at the processes: "rank 2 has
  // died" (kPeerLost), "rank 2 is not responding" (kDeadlineExceeded), "rank 2
  // gave up: ..." (kAborted). Once not ok it stays the same. A few us.
  Status check();

  // Says that a thread of this process sleeps until `rank` posts; nothing: for
  // nobody. Several threads overwrite each other: it only helps blame().
  void set_awaited(std::optional<int> rank);
  // Records that `rank` did not answer in time, or whoever that one waits for
  // itself, unless there is trouble already; returns the first trouble.
  Status blame(int rank);
  // Records that this rank goes no further, and why.
  void give_up(const std::string& why);
  // Records that this rank is done: from now on its end is trouble only to ranks
  // that still wait for it.
  void leave();
  bool has_left(int rank) const;
  // The error of whoever waits for `rank`, which has left.
  Status departure(int rank) const;
  // Whether its process has ended, left or not. REQUIRES: watch().
  bool has_ended(int rank) const;

  // The process id of `rank`. REQUIRES: it has entered.
  int process(int rank) const { return record(rank).pid; }
  // Says that memory of this process which other ranks were told to read may
  // be reused from now on. Called before a call that lent memory fails.
  void revoke_memory();
  // Whether `rank` has called revoke_memory(). Asked after memory of `rank` has
  // been read: if the answer is no, what was read is what it lent.
  bool has_revoked_memory(int rank) const;

 private:
  int culprit(int rank) const;
  void record_trouble(std::uint64_t word);
  std::optional<Status> trouble() const;
  PeerRecord& record(int rank) const;

  const PeersOptions options_;
  PeersHead* head_;
  std::span<PeerRecord> records_;
  std::vector<Descriptor> processes_;  // By rank; not open: itself, or gone.
  std::vector<int> gone_;  // Ended before watch(). Constant after it.
};

}  // namespace sherd::shm
