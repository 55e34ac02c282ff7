// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/communicator/shm_communicator.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>
#include "base/check.h"
#include "base/hash.h"
#include "c10d_shm/communicator/single_copy.h"
#include "shm/segment.h"
#include "shm/waiter.h"

namespace sherd::c10d_shm {
namespace {

// A write of another rank takes microseconds; it takes longer only while that rank gets no core.
constexpr Duration kEndOfWrites = std::chrono::seconds(30);

}  // namespace

// The layout of a communicator's memory.
struct ShmCommunicator::Layout {
  std::size_t cores = 0;  // The barrier comes first.
  std::size_t writes = 0;
  std::size_t announcements = 0;  // Two tables.
  std::size_t buffers = 0;        // Two per rank.
  std::size_t end = 0;

  Layout(int ranks, const ShmCommunicatorOptions& options) {
    cores = shm::Barrier::cells(ranks) * sizeof(shm::CounterCell);
    writes = cores + shm::round_up_to_lines(index(ranks) * sizeof(cpu_set_t));
    announcements = writes + PeerWriter::bytes(ranks);
    buffers =
        shm::round_up_to_pages(announcements + 2 * Announcements::bytes(ranks));
    end = buffers + 2 * index(ranks) * options.buffer_bytes;
  }
};

std::size_t ShmCommunicator::bytes(
    int ranks, const ShmCommunicatorOptions& options) {
  return Layout(ranks, options).end;
}

ShmCommunicator::ShmCommunicator(
    Bytes memory,
    shm::Peers& peers,
    const Clock& clock,
    const ShmCommunicatorOptions& options)
    : memory_(memory),
      peers_(&peers),
      clock_(&clock),
      options_(options),
      peer_memory_(peers, clock),
      peer_writer_(
          memory.subspan(
              Layout(peers.ranks(), options).writes,
              PeerWriter::bytes(peers.ranks())),
          peers,
          clock),
      barrier_(
          {reinterpret_cast<shm::CounterCell*>(memory.data()),
           shm::Barrier::cells(peers.ranks())},
          peers) {
  SHERD_ASSERT(
      shm::has_room(memory, bytes(peers.ranks(), options)),
      "memory for the communicator");
  SHERD_ASSERT(
      options.buffer_bytes >= index(peers.ranks()) * shm::kCacheLine,
      "a line of the buffer for each rank");
}

std::span<cpu_set_t> ShmCommunicator::cores() const {
  return {
      reinterpret_cast<cpu_set_t*>(
          memory_.data() + Layout(ranks(), options_).cores),
      index(ranks())};
}

Announcements ShmCommunicator::announcements() const {
  const std::size_t bytes = Announcements::bytes(ranks());
  return {
      memory_.subspan(
          Layout(ranks(), options_).announcements + calls_ % 2 * bytes, bytes),
      ranks()};
}

std::byte* ShmCommunicator::buffer(int rank) const {
  return memory_.data() + Layout(ranks(), options_).buffers +
      (2 * index(rank) + round_ % 2) * options_.buffer_bytes;
}

Status ShmCommunicator::begin(
    const CollectiveCall& call,
    std::span<const Bytes> offered,
    std::span<const std::size_t> wanted,
    PieceSizes piece_sizes) {
  SHERD_RETURN_IF_FAILED(failure_);
  // A message may have ended the group, of which no barrier tells: if all have come, it is complete.
  if (auto known = peers_->known_trouble()) {
    return fail(*std::move(known));
  }
  ++calls_;
  ++round_;
  deadline_ = call.deadline;
  const std::size_t size = std::min(call.what.size(), Announcements::kTextMax);
  std::copy_n(call.what.begin(), size, what_.begin());
  what_[size] = '\0';
  const Announcements all = announcements();
  all.set_text(rank(), call.what);
  const auto addresses = all.addresses(rank());
  const auto sizes = all.offered(rank());
  const auto room = all.wanted(rank());
  for (std::size_t r = 0; r < index(ranks()); ++r) {
    addresses[r] = offered.empty()
        ? 0
        : reinterpret_cast<std::uintptr_t>(offered[r].data());
    sizes[r] = offered.empty() ? 0 : offered[r].size();
    room[r] = wanted.empty() ? 0 : wanted[r];
  }
  all.digest(rank()) = digest_of(all, piece_sizes);
  return {};
}

// The digest of what this rank has announced. 0 means that there is none, so 1 replaces it.
std::uint64_t ShmCommunicator::digest_of(
    const Announcements& all, PieceSizes sizes) const {
  if (sizes == PieceSizes::kAny) {
    return 0;
  }
  Hash64 hash;
  hash.add(all.text(rank()));
  for (const std::uint64_t bytes : all.offered(rank())) {
    hash.add(bytes);
  }
  return std::max<std::uint64_t>(hash.value(), 1);
}

Status ShmCommunicator::meet() {
  SHERD_RETURN_IF_FAILED(failure_);
  const shm::Waiter waiter(
      *peers_, *clock_, {.deadline = deadline_, .spin = spin_});
  Status outcome = barrier_.arrive_and_wait(
      waiter,
      {.what = what_.data(),
       .cancel_counter = shm::Counter(aborted_),
       .cancel_value = 1});
  return outcome.ok() ? outcome : fail(std::move(outcome));
}

Status ShmCommunicator::meet_and_compare() {
  SHERD_RETURN_IF_FAILED(meet());
  const Announcements all = announcements();
  all_said_the_same_ = all.all_say_the_same();
  if (all_said_the_same_) {
    return {};
  }
  std::string sentence = all.mismatch([&](int r) { return peers_->name(r); });
  return sentence.empty()
      ? Status()
      : Status(ErrorCode::kPeerMismatch, std::move(sentence));
}

// If all announce the same, no other rank's line has to be read again.
std::size_t ShmCommunicator::largest_piece() const {
  const Announcements all = announcements();
  if (!all_said_the_same_) {
    return all.largest();
  }
  const auto offered = all.offered(rank());
  return ranks() == 1 ? 0 : *std::ranges::max_element(offered);
}

std::byte* ShmCommunicator::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_ =
        std::make_unique_for_overwrite<std::byte[]>(bytes + shm::kCacheLine);
    scratch_bytes_ = bytes;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(scratch_.get());
  return scratch_.get() + (shm::kCacheLine - begin % shm::kCacheLine);
}

void ShmCommunicator::abort() { shm::Counter(aborted_).post(1); }

Status ShmCommunicator::run(const std::function<Status()>& collective) {
  try {
    return collective();
  } catch (...) {
    return fail(
        {ErrorCode::kUnavailable,
         "[c10d_shm] " + reason_of(std::current_exception())});
  }
}

// The order matters: the others learn the reason, then that this rank has given up, then that its
// memory is no longer lent; the caller may go on only when no rank writes that memory any more.
Status ShmCommunicator::fail(Status why) {
  if (failure_.ok()) {
    failure_ = std::move(why);
    barrier_.give_up(failure_);
    peers_->revoke_memory();
    peer_writer_.await_end(kEndOfWrites);
  }
  return failure_;
}

std::uint64_t ShmCommunicator::address(
    int rank, int piece_of, std::size_t offset) const {
  return announcements().addresses(rank)[index(piece_of)] + offset;
}

Status ShmCommunicator::read(
    int rank, int piece_of, std::size_t offset, Bytes target) {
  Status outcome =
      peer_memory_.read(rank, address(rank, piece_of, offset), target);
  return outcome.ok() ? outcome : fail(std::move(outcome));
}

Status ShmCommunicator::write(
    int rank,
    int piece_of,
    std::size_t offset,
    std::span<const std::byte> source) {
  Status outcome =
      peer_writer_.write(rank, address(rank, piece_of, offset), source);
  return outcome.ok() ? outcome : fail(std::move(outcome));
}

// --- What the kernel allows.

// Each rank reads a number from each other one and writes it back, and reports whether it could.
Status ShmCommunicator::probe(Duration deadline, bool& allowed) {
  const std::uint64_t secret = 0x5ca1ab1e00000000ULL + index(rank());
  std::vector<std::uint64_t> own(index(ranks()), secret);  // One for each.
  std::vector<Bytes> offered;
  for (std::uint64_t& number : own) {
    offered.push_back(std::as_writable_bytes(std::span(&number, 1)));
  }
  const std::vector<std::size_t> wanted(index(ranks()), sizeof(secret));
  const CollectiveCall call{.what = "opening", .deadline = deadline};
  SHERD_RETURN_IF_FAILED(begin(call, offered, wanted));
  SHERD_RETURN_IF_FAILED(meet_and_compare());
  bool could = true;
  for (int r = 0; r < ranks() && could; ++r) {
    std::uint64_t found = 0;
    const auto bytes = std::as_writable_bytes(std::span(&found, 1));
    const std::uint64_t there = address(r, rank(), 0);
    could =
        copy_from({.pid = peers_->process(r), .address = there}, bytes).ok() &&
        found - index(r) == secret - index(rank()) &&
        (r == rank() || peer_writer_.write(r, there, bytes).ok());
  }
  *buffer(rank()) = std::byte{could};
  auto failed = meet();
  allowed = failed.ok();
  for (int r = 0; r < ranks(); ++r) {
    allowed = allowed && *buffer(r) == std::byte{1};
  }
  return failed;
}

// Finds out whether there is a core for each.
Status ShmCommunicator::meet_first(Duration deadline) {
  cpu_set_t& own = cores()[index(rank())];
  if (::sched_getaffinity(0, sizeof(own), &own) != 0) {
    CPU_ZERO(&own);
  }
  peer_writer_.open();
  Status failed = begin({.what = "opening", .deadline = deadline}, {}, {});
  if (failed.ok()) {
    failed = meet();
  }
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const cpu_set_t& each : cores()) {
    CPU_OR(&all, &all, &each);
  }
  // Otherwise a spinning rank would keep the awaited one from running.
  spin_ = CPU_COUNT(&all) >= ranks() ? options_.spin : Duration(0);
  return failed;
}

Status ShmCommunicator::open(Duration deadline) {
  Status failed = meet_first(deadline);
  if (!failed.ok() || ranks() == 1 || !options_.single_copy) {
    return failed;
  }
  bool allowed = false;
  failed = probe(deadline, allowed);
  if (failed.ok() && !allowed) {
    let_peers_copy();
    failed = probe(deadline, allowed);
  }
  single_copy_ = failed.ok() && allowed;
  return failed;
}

}  // namespace sherd::c10d_shm
