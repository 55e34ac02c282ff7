// SPDX-License-Identifier: Apache-2.0
//
// The processes that share a segment, as each of them sees the others: which have died, left or
// given up. Their records and the first trouble lie in the segment, so that all ranks name the same
// cause, even those that notice only its consequences. Thread rule: enter() and watch() on one
// thread before all others; everything else on any thread.
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

// What a process writes about itself. All zeros until it has entered.
struct alignas(kCacheLine) PeerRecord {
  std::int32_t pid;
  std::uint32_t has_left;
  std::uint64_t start_ticks;    // Detects a recycled process id; 0 if unknown.
  std::uint64_t pid_namespace;  // Process ids are comparable only within one.
  std::uint32_t awaits;         // 0, or 1 + the rank that it sleeps for.
  std::uint32_t why_taken;      // Whether a thread has begun to write `why`.
  std::uint32_t memory_revoked;
  std::array<char, 348> why;  // Why it gave up; zero-terminated.
};

struct alignas(kCacheLine) PeersHead {
  // 0, or the first trouble: its kind (8 bits), the rank (28), the rank that reported it (28).
  std::uint64_t trouble;
};

struct PeersOptions {
  int rank = 0;  // Within the segment.
  int ranks = 1;
  // How messages name the ranks, in the segment's order; if empty, by their index in the segment.
  std::vector<int> names{};

  // How messages name the rank with that index, e.g. "rank 2".
  std::string name(int index) const;
};

class Peers {
 public:
  static std::size_t bytes(int ranks);

  // `memory` is Peers::bytes(ranks) of the segment, the same for all ranks, and zeros when the
  // first one enters. REQUIRES: 0 <= rank < ranks < 2^28.
  Peers(std::span<std::byte> memory, PeersOptions options);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Writes this process's record.
  void enter();
  // Starts to watch the others. REQUIRES: all have entered, and this rank learned that through
  // something that orders memory. kFailedPrecondition if process ids are not comparable,
  // kUnavailable if the kernel has no pidfds.
  Status watch();

  int rank() const { return options_.rank; }
  int ranks() const { return options_.ranks; }
  std::string name(int rank) const { return options_.name(rank); }

  // Looks at the processes and returns the first trouble of any rank: "rank 2 has died"
  // (kPeerLost), "rank 2 is not responding" (kDeadlineExceeded), "rank 2 gave up: ..." (kAborted).
  // Once it is not ok it stays the same. Takes a few us.
  Status check();
  // The first trouble that some rank has recorded; nothing if there is none. Looks at no process: it
  // is one load.
  std::optional<Status> known_trouble() const;

  // Announces that a thread of this process sleeps until `rank` posts, or, with nothing, that none
  // does. Several threads overwrite each other: it is only a hint for blame().
  void set_awaited(std::optional<int> rank);
  // Records that `rank`, or the rank that it waits for itself, did not answer in time, unless there
  // is trouble already; returns the first trouble.
  Status blame(int rank);
  // Records that this rank does not go on, and why.
  void give_up(const std::string& why);
  // Records that this rank is done: from now on its end is trouble only for ranks that still wait
  // for it.
  void leave();
  bool has_left(int rank) const;
  // The error for a rank that waits for `rank`, which has left.
  Status departure(int rank) const;
  // Whether its process has ended, whether or not it had left. REQUIRES: watch().
  bool has_ended(int rank) const;

  // The process id of `rank`. REQUIRES: it has entered.
  int process(int rank) const { return record(rank).pid; }
  // Records that memory of this process that other ranks were asked to read may be reused from now
  // on. Called before a call that lent memory fails.
  void revoke_memory();
  // Whether `rank` has called revoke_memory(). Checked after memory of `rank` has been read: if it
  // has not, what was read is what it lent.
  bool has_revoked_memory(int rank) const;

 private:
  int culprit(int rank) const;
  enum class Trouble : std::uint8_t;
  void record_trouble(Trouble what, int rank);
  PeerRecord& record(int rank) const;

  const PeersOptions options_;
  PeersHead* head_;
  std::span<PeerRecord> records_;
  // By rank; not open for itself and for those that are gone.
  std::vector<Descriptor> processes_;
  // Those that ended before watch(). Constant after it.
  std::vector<int> gone_;
};

}  // namespace sherd::shm
