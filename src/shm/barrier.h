// SPDX-License-Identifier: Apache-2.0
//
// Barrier waits for all ranks of a segment; SmallAllGather is an all-gather of a few bytes. Both
// are collective: every rank calls them equally often, in the same order. The first failure is kept
// and returned from then on, because the ranks are no longer in step. A rank that gives up records
// the round, so that a rank that comes to that round late fails, too, although all have arrived.
// They refer to memory of a segment, which must outlive them. Thread rule: one thread each.
// docs/design/shared_memory.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include "base/status.h"
#include "shm/counter.h"
#include "shm/waiter.h"

namespace sherd::shm {

class Barrier {
 public:
  // How many counters of the segment `ranks` ranks need.
  static std::size_t cells(int ranks) {
    return 2 * static_cast<std::size_t>(ranks);
  }

  // `cells` has as many counters as cells() says, the same ones for all ranks, zeros before the
  // first round. `peers` must outlive it.
  Barrier(std::span<CounterCell> cells, Peers& peers);

  // Returns ok if every rank has called it for this round and none has given up in this round or
  // before; everything that they wrote before is then visible. Otherwise returns the first trouble
  // of any rank, as Waiter::wait() does, or kAborted if what.cancel_counter ends the wait; this
  // rank has then given up. what.rank is not used.
  Status arrive_and_wait(const Waiter& waiter, WaitTarget what);

  // Records that this rank takes part in no further round, and `why`, for the others: they fail in
  // the round after this one at the latest.
  void give_up(const Status& why);

  // How many rounds this rank has begun.
  std::uint64_t round() const { return round_; }
  // The same for any rank.
  Counter arrived(int rank) const {
    return Counter(cells_[static_cast<std::size_t>(rank)]);
  }

 private:
  // The round in which `rank` gave up; 0 if it has not.
  Counter gave_up(int rank) const {
    return Counter(cells_[static_cast<std::size_t>(peers_->ranks() + rank)]);
  }
  Status await(const Waiter& waiter, WaitTarget what) const;
  void give_up_in(std::uint64_t round, const Status& why);

  std::span<CounterCell> cells_;
  Peers* peers_;
  std::uint64_t round_ = 0;
  Status failure_;
};

class SmallAllGather {
 public:
  // How many bytes of a segment `ranks` cells of up to `cell_bytes` take.
  static std::size_t bytes(int ranks, std::size_t cell_bytes);

  // `memory` is as long as bytes() says, aligned to kCacheLine, the same for all ranks, and zeros
  // before the first round.
  SmallAllGather(
      std::span<std::byte> memory,
      std::size_t cell_bytes,
      const Waiter& waiter);

  // Writes what every rank contributed to `all`, in rank order. kPeerMismatch on every rank, naming
  // one, if ranks contribute different numbers of bytes. REQUIRES: own.size() <= cell_bytes,
  // all.size() == ranks * own.size().
  Status all_gather_bytes(
      std::span<const std::byte> own,
      std::span<std::byte> all,
      std::string_view what);

  template <typename T>
  Status all_gather(
      std::span<const T> own, std::span<T> all, std::string_view what) {
    static_assert(std::is_trivially_copyable_v<T>);
    return all_gather_bytes(
        std::as_bytes(own), std::as_writable_bytes(all), what);
  }

  // How many rounds this rank has begun, and how many any rank has.
  std::uint64_t round() const { return barrier_.round(); }
  Counter arrived(int rank) const { return barrier_.arrived(rank); }

 private:
  // A cell begins with the number of bytes that follow.
  using Length = std::uint64_t;
  static std::size_t stride(std::size_t cell_bytes);
  std::byte* cell(int rank, std::uint64_t round) const;

  std::byte* buffers_;
  std::size_t cell_bytes_;
  Waiter waiter_;
  Barrier barrier_;
  Status failure_;
};

}  // namespace sherd::shm
