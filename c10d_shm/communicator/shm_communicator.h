// SPDX-License-Identifier: Apache-2.0
//
// The framework of a collective among the ranks of a segment: each rank announces what it
// contributes, all meet in a barrier and compare, bytes move through buffers of the segment or
// directly between processes, and the ranks meet again. Refers to memory of a segment, which must
// outlive it. Buffers and announcements are used in turn (docs/design/shm_backend.md). Thread rule:
// one thread.
#pragma once

#include <sched.h>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include "base/clock.h"
#include "base/status.h"
#include "c10d_shm/communicator/announcement.h"
#include "c10d_shm/communicator/bytes.h"
#include "c10d_shm/communicator/peer_memory.h"
#include "shm/barrier.h"
#include "shm/counter.h"
#include "shm/peers.h"

namespace sherd::c10d_shm {

// Equal on every rank.
struct ShmCommunicatorOptions {
  // ---- behaviour ----
  // Whether to copy from process to process if that is allowed.
  bool single_copy = true;
  // ---- performance ----
  // How much a rank sends through the segment at a time; each rank has two such buffers. A multiple
  // of the page size.
  std::size_t buffer_bytes = std::size_t{1} << 20;
  // Pieces of at least this size are copied directly: each page costs a lookup.
  std::size_t single_copy_bytes_min = std::size_t{256} << 10;
  // The same for the total contribution of a rank to a reduction, which goes back and forth:
  // smaller ones go through the segment.
  std::size_t single_copy_sum_bytes_min = (std::size_t{1} << 20) + 1;
  // Up to this size, every rank sums an all-reduce on its own, which is more work but one barrier
  // less.
  std::size_t sum_alone_bytes_max = std::size_t{128} << 10;
  // As in WaitOptions; not used if ranks have to share cores.
  Duration spin = std::chrono::microseconds(50);
};

struct CollectiveCall {
  // Operation, dtype and root in words: what all ranks must agree on.
  std::string_view what{};
  // How long one rank may keep the others waiting.
  Duration deadline = std::chrono::seconds(60);
};

class ShmCommunicator {
 public:
  // The number of bytes that it needs in a segment.
  static std::size_t bytes(int ranks, const ShmCommunicatorOptions& options);

  // `memory` is bytes(ranks, options) of a segment, aligned to kCacheLine, initially zeros. `peers`
  // and `clock` must outlive it.
  ShmCommunicator(
      Bytes memory,
      shm::Peers& peers,
      const Clock& clock,
      const ShmCommunicatorOptions& options);
  ShmCommunicator(const ShmCommunicator&) = delete;
  ShmCommunicator& operator=(const ShmCommunicator&) = delete;

  // Collective, before all other calls: finds out what the kernel allows.
  Status open(Duration deadline);
  // Whether ranks copy from each other directly. Equal on every rank.
  bool single_copy() const { return single_copy_; }

  // When the pieces of a call match: kAny needs a comparison of each rank with each other one;
  // kFitWhenEqual means that they match as soon as all ranks announce the same sizes.
  enum class PieceSizes { kAny, kFitWhenEqual };

  int rank() const { return peers_->rank(); }
  int ranks() const { return peers_->ranks(); }
  const ShmCommunicatorOptions& options() const { return options_; }
  // Begins a collective: announces what this rank has for each other one, and for how many of its
  // bytes there is room. From then on the buffers are free. Fails if the group has ended, also by a
  // message.
  Status begin(
      const CollectiveCall& call,
      std::span<const Bytes> offered,
      std::span<const std::size_t> wanted,
      PieceSizes sizes = PieceSizes::kAny);
  // meet(), then compares the announcements: kPeerMismatch on every rank if they do not match; the
  // next collective may follow.
  Status meet_and_compare();
  // Returns when all ranks have called it and none has given up meanwhile.
  Status meet();
  // Switches to the other buffers. Called between meet() and writing to them.
  void next_round() { ++round_; }

  // REQUIRES: meet_and_compare() of this collective was ok, and no other has begun.
  std::size_t largest_piece() const;

  // This round's buffer of `rank`.
  std::byte* buffer(int rank) const;
  // Memory of this rank only, kept from call to call, since new pages would cost more than a small
  // call. Aligned to kCacheLine; each call may overwrite or replace what an earlier one got.
  std::byte* scratch(std::size_t bytes);

  // Reads what `rank` announced for `piece_of`, from `offset` on. After a failure the group has
  // ended. REQUIRES: as largest_piece().
  Status read(int rank, int piece_of, std::size_t offset, Bytes target);
  Status write(
      int rank,
      int piece_of,
      std::size_t offset,
      std::span<const std::byte> source);

  // Ends the current or next wait of another thread of this process, as fail() does. Thread rule:
  // any thread.
  void abort();

  // Runs `collective` and returns its outcome. If it throws, this rank has not done its part, and
  // meetings of the ranks would no longer fit together: then the group ends, as by fail().
  Status run(const std::function<Status()>& collective);

  // Ends the group for all ranks, and takes back the memory that this rank lent: when it returns,
  // no rank writes it any more.
  Status fail(Status why);

 private:
  Announcements announcements() const;
  std::uint64_t digest_of(const Announcements& all, PieceSizes sizes) const;
  std::uint64_t address(int rank, int piece_of, std::size_t offset) const;
  Status meet_first(Duration deadline);
  Status probe(Duration deadline, bool& allowed);
  std::span<cpu_set_t> cores() const;  // Indexed by rank.
  struct Layout;

  Bytes memory_;
  shm::Peers* peers_;
  const Clock* clock_;
  const ShmCommunicatorOptions options_;
  const PeerMemory peer_memory_;
  PeerWriter peer_writer_;
  shm::Barrier barrier_;
  bool single_copy_ = false;
  Duration spin_{0};
  std::uint64_t calls_ = 0;
  std::uint64_t round_ = 0;
  Duration deadline_{0};
  bool all_said_the_same_ = false;  // In this collective.
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;
  std::array<char, Announcements::kTextMax + 1> what_{};
  Status failure_;
  shm::CounterCell aborted_{};  // Used in this process only.
};

}  // namespace sherd::c10d_shm
