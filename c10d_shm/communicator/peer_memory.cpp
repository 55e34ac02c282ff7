// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/communicator/peer_memory.h"

#include <atomic>
#include <thread>
#include "base/check.h"
#include "c10d_shm/communicator/bytes.h"
#include "c10d_shm/communicator/single_copy.h"
#include "shm/counter.h"

namespace sherd::c10d_shm {
namespace {

// How long to look for the cause of a failed copy. A process loses its memory a moment before it is
// seen to have ended; that moment is long if others have all the cores.
constexpr Duration kCauseAppears = std::chrono::milliseconds(300);
constexpr Duration kEndAppears = std::chrono::seconds(5);
constexpr Duration kLook = std::chrono::milliseconds(1);

}  // namespace

Status PeerMemory::read(
    int rank, std::uint64_t address, std::span<std::byte> target) const {
  const Status copied =
      copy_from({.pid = peers_->process(rank), .address = address}, target);
  return copied.ok() ? still_lent(rank) : cause(rank, copied);
}

Status PeerMemory::still_lent(int rank) const {
  return peers_->has_revoked_memory(rank) ? cause(rank, {}) : Status();
}

Status PeerMemory::cause(int rank, const Status& copied) const {
  const bool memory_is_gone =
      !copied.ok() && copied.code() == ErrorCode::kPeerLost;
  const Instant limit =
      clock_->now() + (memory_is_gone ? kEndAppears : kCauseAppears);
  for (;;) {
    // Before the looks: this thread may have no core for longer than the limit.
    const bool last_look = clock_->now() >= limit;
    // In this order: a rank that leaves or gives up because of trouble has recorded it before.
    const bool left = peers_->has_left(rank);
    const bool gave_up = peers_->has_revoked_memory(rank);
    SHERD_RETURN_IF_FAILED(peers_->check());
    if (left || gave_up) {
      return {
          ErrorCode::kPeerLost,
          str("[c10d_shm] ", peers_->name(rank),
              left ? " has left" : " has given up",
              " before this rank had copied its part")};
    }
    if (last_look) {
      return {
          copied.code(),
          str("[c10d_shm] reading memory of ", peers_->name(rank), ": ",
              copied.message())};
    }
    std::this_thread::sleep_for(kLook);
  }
}

std::size_t PeerWriter::bytes(int ranks) {
  return index(ranks) *
      (shm::round_up_to_lines(index(ranks) * sizeof(WriteCounts)) +
       shm::round_up_to_lines(sizeof(std::uint64_t)));
}

PeerWriter::PeerWriter(
    std::span<std::byte> memory, shm::Peers& peers, const Clock& clock)
    : memory_(memory),
      peers_(&peers),
      clock_(&clock),
      peer_memory_(peers, clock) {
  SHERD_ASSERT(
      shm::has_room(memory, bytes(peers.ranks())),
      "memory for the writes of all ranks");
}

// A row for each writer, so that no two write to one cache line.
PeerWriter::WriteCounts& PeerWriter::writes(int from, int to) const {
  const std::size_t row =
      shm::round_up_to_lines(index(peers_->ranks()) * sizeof(WriteCounts));
  return reinterpret_cast<WriteCounts*>(
      memory_.data() + index(from) * row)[index(to)];
}

std::uint64_t& PeerWriter::base_of(int rank) const {
  const std::size_t row =
      shm::round_up_to_lines(index(peers_->ranks()) * sizeof(WriteCounts));
  return *reinterpret_cast<std::uint64_t*>(
      memory_.data() + index(peers_->ranks()) * row +
      index(rank) * shm::round_up_to_lines(sizeof(std::uint64_t)));
}

void PeerWriter::open() {
  base_of(peers_->rank()) = reinterpret_cast<std::uintptr_t>(memory_.data());
}

// The writer records that it begins (B), then reads the mark (R); the owner sets the mark (M), then
// reads what has begun (A). All are sequentially consistent: R before M implies B before A, so the
// owner waits for this write; if M is before R, nothing is written.
Status PeerWriter::write(
    int rank, std::uint64_t address, std::span<const std::byte> source) {
  WriteCounts& own = writes(peers_->rank(), rank);
  const std::atomic_ref begun(own.begun);
  const std::atomic_ref ended(own.ended);
  const std::uint64_t mark = base_of(rank) +
      static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(&own.ended) -
                                 memory_.data());
  const RemoteBytes target{.pid = peers_->process(rank), .address = address};
  // Relaxed: only this thread writes it.
  const std::uint64_t number = begun.load(std::memory_order_relaxed) + 1;
  begun.store(number, std::memory_order_seq_cst);  // B above.
  Status copied;
  if (!peers_->has_revoked_memory(rank)) {  // R above.
    copied = copy_to(target, source, mark, number);
    if (copied.ok()) {
      return copied;
    }
  }
  // Release: pairs with the acquire in may_still_write().
  ended.store(number, std::memory_order_release);
  return peer_memory_.cause(rank, copied);
}

bool PeerWriter::may_still_write(int rank) const {
  WriteCounts& its = writes(rank, peers_->rank());
  const std::uint64_t begun =
      std::atomic_ref(its.begun).load(std::memory_order_seq_cst);  // A above.
  return std::atomic_ref(its.ended).load(std::memory_order_acquire) != begun &&
      !peers_->has_ended(rank);
}

void PeerWriter::await_end(Duration at_most) const {
  const Instant limit = clock_->now() + at_most;
  for (int r = 0; r < peers_->ranks(); ++r) {
    while (r != peers_->rank() && may_still_write(r)) {
      SHERD_ASSERT(
          clock_->now() < limit, "[c10d_shm] ", peers_->name(r),
          " was stopped while it wrote memory of ",
          peers_->name(peers_->rank()), ", and has not gone on for ",
          seconds(at_most), " s: this memory cannot be used any more");
      std::this_thread::sleep_for(kLook);
    }
  }
}

}  // namespace sherd::c10d_shm
