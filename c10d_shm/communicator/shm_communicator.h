// SPDX-License-Identifier: Apache-2.0
//
// The frame of a collective among the ranks of a segment: each rank announces what it brings, all
// meet in a barrier and compare, bytes move through buffers of the segment or directly between
// processes, and the ranks meet again. Refers to memory of a segment, which must outlive it.
// Thread rule: one thread.
//
// Buffers and announcements are used in turns: a rank that writes one in round n + 2 has met all
// ranks in round n + 1, to which they came after all reads of round n.
#pragma once

#include <sched.h>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>
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
  // Behaviour. Whether to copy from process to process where that is allowed.
  bool single_copy = true;
  // Performance. What a rank brings through the segment at a time; there are
  // two such buffers a rank. Whole pages.
  std::size_t buffer_bytes = std::size_t{1} << 20;
  // Pieces from here on are copied directly: each page costs a lookup.
  std::size_t single_copy_bytes_min = std::size_t{256} << 10;
  // The same for what a rank brings to a reduction in all, which goes back and
  // forth: up to here it goes through the segment.
  std::size_t single_copy_sum_bytes_min = (std::size_t{1} << 20) + 1;
  // An all-reduce up to here is summed by every rank on its own: more work, one
  // meeting less.
  std::size_t sum_alone_bytes_max = std::size_t{128} << 10;
  // As in WaitOptions; not where ranks have to share cores.
  Duration spin = std::chrono::microseconds(50);
};

struct CollectiveCall {
  // Operation, dtype, root, in words: what all ranks must agree on.
  std::string_view what{};
  // How long one rank may keep the others waiting.
  Duration deadline = std::chrono::seconds(60);
};

// When the pieces of a call fit together: whatever ranks offer, as a comparison
// of each with each finds; or as soon as all ranks offer the same sizes.
enum class PieceSizes { kAny, kFitWhenEqual };

class ShmCommunicator {
 public:
  // Bytes of segment.
  static std::size_t bytes(int ranks, const ShmCommunicatorOptions& options);

  // `memory`: bytes(ranks, options) of a segment, aligned to kCacheLine, zeros at first.
  // `peers` and `clock` must outlive it.
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

  int rank() const { return peers_->rank(); }
  int ranks() const { return peers_->ranks(); }
  const ShmCommunicatorOptions& options() const { return options_; }
  // Begins a collective: announces what this rank has for each other one, and for
  // how many bytes of each it has room. The buffers are free from then on.
  Status begin(
      const CollectiveCall& call,
      std::span<const Bytes> offered,
      std::span<const std::size_t> wanted,
      PieceSizes sizes = PieceSizes::kAny);
  // meet(), then compares the announcements: kPeerMismatch on every rank, and the
  // next collective may follow, when they do not fit together.
  Status meet_and_compare();
  // Returns when all ranks have called it and none has given up meanwhile.
  Status meet();
  // Turns to the other buffers. Between meet() and writing to them.
  void next_round() { ++round_; }

  // REQUIRES: meet_and_compare() of this collective was ok, no other has begun.
  std::size_t largest_piece() const;

  // This round's buffer of `rank`.
  std::byte* buffer(int rank) const;
  // Memory of this rank alone, kept from call to call, since new pages would
  // cost more than a small call. Aligned to kCacheLine; each call may overwrite
  // or replace what an earlier one got.
  std::byte* scratch(std::size_t bytes);

  // What `rank` announced for `piece_of`, from `offset` on. After a failure the
  // group has ended. REQUIRES: as largest_piece().
  Status read(int rank, int piece_of, std::size_t offset, Bytes target);
  Status write(
      int rank,
      int piece_of,
      std::size_t offset,
      std::span<const std::byte> source);

  // Ends the wait of another thread of this process, or the next one, as fail()
  // does. Thread rule: any thread.
  void abort();

  // Ends the group for all ranks, and takes back the memory that this rank lent:
  // when it returns, nobody writes it any more.
  Status fail(Status why);

 private:
  Announcements announcements() const;
  std::uint64_t digest_of(const Announcements& all, PieceSizes sizes) const;
  std::uint64_t address(int rank, int piece_of, std::size_t offset) const;
  Status meet_first(Duration deadline);
  Status probe(Duration deadline, bool& allowed);
  std::span<cpu_set_t> cores() const;  // By rank.
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
  shm::CounterCell aborted_{};  // In this process only.
};

}  // namespace sherd::c10d_shm
