// SPDX-License-Identifier: Apache-2.0
//
// Copies between this process and memory that other ranks have lent, in a single copy by the
// kernel: PeerMemory reads, PeerWriter writes. Before a call that lent memory fails, its rank
// revokes all of it (Peers::revoke_memory) and waits until no rank writes it any more. Then the
// memory belongs to the caller again, whatever late ranks do, as docs/design/shm_backend.md proves.
// Thread rule: PeerMemory any thread, PeerWriter one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include "base/clock.h"
#include "base/status.h"
#include "shm/peers.h"

namespace sherd::c10d_shm {

class PeerMemory {
 public:
  // `peers` and `clock` must outlive it.
  PeerMemory(shm::Peers& peers, const Clock& clock)
      : peers_(&peers), clock_(&clock) {}

  // Reads the bytes at `address` of `rank`, as many as `target` has. Ok only if the rank had not
  // revoked its memory. Otherwise returns the first trouble of any rank, or an error that names
  // `rank`, and `target` is undefined; this may take 0.3 s, until the cause is known.
  Status read(
      int rank, std::uint64_t address, std::span<std::byte> target) const;
  // Ok if `rank` has not revoked its memory; otherwise fails as read() does.
  Status still_lent(int rank) const;
  // Why a copy from or to memory of `rank` failed, or must not be used.
  Status cause(int rank, const Status& copied) const;

 private:
  shm::Peers* peers_;
  const Clock* clock_;
};

class PeerWriter {
 public:
  // The number of bytes that it needs in a segment.
  static std::size_t bytes(int ranks);

  // `memory` is bytes(ranks) of a segment, aligned to kCacheLine, initially zeros. `peers` and
  // `clock` must outlive it.
  PeerWriter(
      std::span<std::byte> memory, shm::Peers& peers, const Clock& clock);

  // Tells the other ranks where `memory` lies in this process. Called before anything else, and
  // before a barrier of all ranks.
  void open();

  // Writes `source` to `address` of `rank`. Fails as PeerMemory::read() does; some of it may have
  // been written then, but nothing after `rank` has revoked its memory and await_end() has returned
  // there.
  Status write(
      int rank, std::uint64_t address, std::span<const std::byte> source);

  // Returns when no rank writes memory of this one any more, now or later. A rank that was stopped
  // after it had found the memory lent, and before it called the kernel, keeps this one waiting;
  // after `at_most` the process aborts, since it can neither go on waiting nor reuse its memory.
  // REQUIRES: Peers::revoke_memory().
  void await_end(Duration at_most) const;

 private:
  // How many writes from one rank to another have begun and ended.
  struct WriteCounts {
    std::uint64_t begun;  // Counted by the writer.
    // Counted by the kernel, or by the writer after a failure.
    std::uint64_t ended;
  };
  WriteCounts& writes(int from, int to) const;
  std::uint64_t& base_of(int rank) const;
  bool may_still_write(int rank) const;

  std::span<std::byte> memory_;
  shm::Peers* peers_;
  const Clock* clock_;
  PeerMemory peer_memory_;
};

}  // namespace sherd::c10d_shm
