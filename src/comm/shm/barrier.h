// SPDX-License-Identifier: Apache-2.0
//
// Barrier makes ranks wait for each other; Cells makes each rank's few bytes
// known to all. Both are collective: every rank calls them equally often, in
// the same order. The first failure is kept and returned ever after, for the
// ranks are no longer in step. They refer to memory of a segment, which must
// outlive them. Thread rule: one thread each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include "base/status.h"
#include "comm/shm/counter.h"
#include "comm/shm/waiter.h"

namespace sherd::comm::shm {

class Barrier {
 public:
  // `arrived`: a cell for each rank, the same ones everywhere, zeros before the
  // first round.
  Barrier(std::span<CounterCell> arrived, const Waiter& waiter);

  // Returns ok when every rank has called it for this round: all they wrote
  // before is visible. `what` names the barrier in messages.
  Status arrive_and_wait(std::string_view what);

  // Rounds that this rank has begun.
  std::uint64_t round() const { return round_; }
  // The same of any rank.
  Counter arrived(int rank) const {
    return Counter(arrived_[static_cast<std::size_t>(rank)]);
  }

 private:
  std::span<CounterCell> arrived_;
  Waiter waiter_;
  std::uint64_t round_ = 0;
  Status failure_;
};

class Cells {
 public:
  // Bytes of segment for `ranks` cells of up to `cell_bytes`.
  static std::size_t bytes(int ranks, std::size_t cell_bytes);

  // `memory`: as long as bytes() says, aligned to kCacheLine, the same
  // everywhere, zeros before the first round.
  Cells(
      std::span<std::byte> memory,
      std::size_t cell_bytes,
      const Waiter& waiter);

  // Writes what every rank brought to `all`, in rank order. kPeerMismatch on
  // every rank, naming one, when ranks bring different numbers of bytes.
  // REQUIRES: own.size() <= cell_bytes, all.size() == ranks * own.size().
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

  // Rounds that this rank has begun, and those of any rank.
  std::uint64_t round() const { return barrier_.round(); }
  Counter arrived(int rank) const { return barrier_.arrived(rank); }

 private:
  struct CellHead {
    std::uint64_t bytes;
  };
  static std::size_t stride(std::size_t cell_bytes);
  std::byte* cell(int rank, std::uint64_t round) const;

  std::byte* buffers_;
  std::size_t cell_bytes_;
  Waiter waiter_;
  Barrier barrier_;
  Status failure_;
};

}  // namespace sherd::comm::shm
