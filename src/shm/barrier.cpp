// SPDX-License-Identifier: Apache-2.0
//
// SmallAllGather has two buffers per rank, used in turn, and one barrier per round: write buffer n
// % 2, barrier n, read everybody's buffer n % 2. docs/design/shared_memory.md proves that no second
// barrier is needed before the buffer is written again.
#include "shm/barrier.h"

#include <cstring>
#include "base/check.h"

namespace sherd::shm {
namespace {

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

std::uint64_t& length_of(std::byte* cell) {
  return *reinterpret_cast<std::uint64_t*>(cell);
}

}  // namespace

Barrier::Barrier(std::span<CounterCell> cells, Peers& peers)
    : cells_(cells), peers_(&peers) {
  SHERD_ASSERT(
      cells.size() == Barrier::cells(peers.ranks()), "two cells for each rank");
}

// There is a counter for each rank instead of one for all: a wait that fails then knows who is
// missing, and arriving ranks do not compete for one cache line.
Status Barrier::arrive_and_wait(const Waiter& waiter, WaitTarget what) {
  SHERD_RETURN_IF_FAILED(failure_);
  ++round_;
  arrived(peers_->rank()).post(round_);
  failure_ = await(waiter, what);
  if (!failure_.ok()) {
    give_up_in(round_, failure_);
  }
  return failure_;
}

// Each rank begins with its neighbour, so that not all look at the same rank. A rank that gave up
// in a later round has seen this one through, so what it contributed counts.
Status Barrier::await(const Waiter& waiter, WaitTarget what) const {
  const int ranks = peers_->ranks();
  for (int i = 1; i < ranks; ++i) {
    what.rank = (peers_->rank() + i) % ranks;
    Status outcome = waiter.wait(arrived(what.rank), round_, what);
    if (outcome.ok() && !arrived(what.rank).reached(round_)) {
      outcome = Status(
          ErrorCode::kAborted,
          str("[shm] ", what.what, " was aborted by ",
              peers_->name(peers_->rank())));
    }
    SHERD_RETURN_IF_FAILED(outcome);
  }
  for (int r = 0; r < ranks; ++r) {
    const std::uint64_t last = gave_up(r).value();
    if (last != 0 && last <= round_) {
      Status trouble = peers_->check();
      return trouble.ok()
          ? Status(
                ErrorCode::kAborted,
                str("[shm] ", peers_->name(r), " gave up ", what.what))
          : trouble;
    }
  }
  return {};
}

void Barrier::give_up(const Status& why) {
  if (failure_.ok()) {
    failure_ = why;
    give_up_in(round_ + 1, why);
  }
}

void Barrier::give_up_in(std::uint64_t round, const Status& why) {
  peers_->give_up(why.message());
  gave_up(peers_->rank()).post(round);
}

std::size_t SmallAllGather::stride(std::size_t cell_bytes) {
  return round_up_to_lines(sizeof(Length) + cell_bytes);
}

std::size_t SmallAllGather::bytes(int ranks, std::size_t cell_bytes) {
  return Barrier::cells(ranks) * sizeof(CounterCell) +
      2 * index(ranks) * stride(cell_bytes);
}

SmallAllGather::SmallAllGather(
    std::span<std::byte> memory, std::size_t cell_bytes, const Waiter& waiter)
    : buffers_(
          memory.data() +
          Barrier::cells(waiter.peers().ranks()) * sizeof(CounterCell)),
      cell_bytes_(cell_bytes),
      waiter_(waiter),
      barrier_(
          {reinterpret_cast<CounterCell*>(memory.data()),
           Barrier::cells(waiter.peers().ranks())},
          waiter.peers()) {
  SHERD_ASSERT(
      has_room(memory, bytes(waiter.peers().ranks(), cell_bytes)),
      "memory for all cells");
}

std::byte* SmallAllGather::cell(int rank, std::uint64_t round) const {
  return buffers_ + (2 * index(rank) + round % 2) * stride(cell_bytes_);
}

Status SmallAllGather::all_gather_bytes(
    std::span<const std::byte> own,
    std::span<std::byte> all,
    std::string_view what) {
  const Peers& peers = waiter_.peers();
  SHERD_ASSERT(
      own.size() <= cell_bytes_ &&
          all.size() == index(peers.ranks()) * own.size(),
      "one cell's bytes, and room for all");
  SHERD_RETURN_IF_FAILED(failure_);
  const std::uint64_t round = barrier_.round() + 1;
  std::byte* const mine = cell(peers.rank(), round);
  length_of(mine) = own.size();
  if (!own.empty()) {
    std::memcpy(mine + sizeof(Length), own.data(), own.size());
  }
  failure_ = barrier_.arrive_and_wait(waiter_, {.what = what});
  SHERD_RETURN_IF_FAILED(failure_);
  // Every rank sees the same lengths, so all refuse or none does. They are compared with rank 0's,
  // so that all report the same.
  const Length first = length_of(cell(0, round));
  for (int r = 1; r < peers.ranks(); ++r) {
    const Length found = length_of(cell(r, round));
    if (found != first) {
      failure_ = Status(
          ErrorCode::kPeerMismatch,
          str("[shm] ", what, ": expected ", first, " bytes as ", peers.name(0),
              " brings, found ", found, " of ", peers.name(r)));
      return failure_;
    }
  }
  for (int r = 0; r < peers.ranks() && !own.empty(); ++r) {
    std::memcpy(
        all.data() + index(r) * own.size(), cell(r, round) + sizeof(Length),
        own.size());
  }
  return {};
}

}  // namespace sherd::shm
