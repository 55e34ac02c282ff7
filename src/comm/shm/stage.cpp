// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/stage.h"

#include <unistd.h>
#include <algorithm>
#include <utility>
#include <vector>
#include "base/check.h"
#include "comm/shm/segment.h"

namespace sherd::comm::shm {
namespace {

// How long a rank that fails waits until no other one copies from or to its
// memory any more, or for the cause of a copy that failed. Ranks notice a
// failure within slices of 5 ms.
constexpr Duration kEndOfCopies = std::chrono::milliseconds(300);
constexpr std::uint64_t kStopped = 1;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

std::size_t lines(std::size_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

}  // namespace

// Where things lie in the memory of a stage.
struct Stage::Places {
  std::size_t arrived = 0;
  std::size_t stopped = 0;
  std::size_t records = 0;
  std::size_t announcements = 0;  // Two.
  std::size_t buffers = 0;        // Two a rank.
  std::size_t end = 0;

  Places(int ranks, const StageOptions& options) {
    stopped = arrived + index(ranks) * sizeof(CounterCell);
    records = stopped + index(ranks) * sizeof(CounterCell);
    announcements = records + lines(index(ranks) * sizeof(RankRecord));
    buffers = whole_pages(announcements + 2 * Announcements::bytes(ranks));
    end = buffers + 2 * index(ranks) * options.buffer_bytes;
  }
};

std::size_t Stage::bytes(int ranks, const StageOptions& options) {
  return Places(ranks, options).end;
}

Stage::Stage(
    Bytes memory, Peers& peers, const Clock& clock, const StageOptions& options)
    : memory_(memory), peers_(&peers), clock_(&clock), options_(options) {
  SHERD_ASSERT(
      memory.size() >= bytes(peers.ranks(), options) &&
          reinterpret_cast<std::uintptr_t>(memory.data()) % kCacheLine == 0,
      "memory for the stage");
  SHERD_ASSERT(
      options.buffer_bytes >= index(peers.ranks()) * kCacheLine,
      "a line of the buffer for each rank");
}

Counter Stage::arrived(int rank) const {
  auto* cells = reinterpret_cast<CounterCell*>(memory_.data());
  return Counter(cells[index(rank)]);
}

Counter Stage::stopped(int rank) const {
  auto* cells = reinterpret_cast<CounterCell*>(
      memory_.data() + Places(ranks(), options_).stopped);
  return Counter(cells[index(rank)]);
}

std::span<Stage::RankRecord> Stage::records() const {
  return {
      reinterpret_cast<RankRecord*>(
          memory_.data() + Places(ranks(), options_).records),
      index(ranks())};
}

std::vector<int> Stage::processes() const {
  std::vector<int> all;
  for (const RankRecord& each : records()) {
    all.push_back(each.pid);
  }
  return all;
}

Announcements Stage::announcements() const {
  const std::size_t bytes = Announcements::bytes(ranks());
  return {
      memory_.subspan(
          Places(ranks(), options_).announcements + calls_ % 2 * bytes, bytes),
      ranks()};
}

std::byte* Stage::buffer(int rank) const {
  return memory_.data() + Places(ranks(), options_).buffers +
      (2 * index(rank) + round_ % 2) * options_.buffer_bytes;
}

Status Stage::begin(
    const Call& call,
    std::span<const Bytes> offered,
    std::span<const std::size_t> wanted) {
  if (!failure_.ok()) {
    return failure_;
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
  return {};
}

Status Stage::meet() {
  if (!failure_.ok()) {
    return failure_;
  }
  ++meetings_;
  copies_end_at_ = meetings_;
  arrived(rank()).post(meetings_);
  const Waiter waiter(*peers_, *clock_, {.deadline = deadline_, .spin = spin_});
  for (int i = 1; i < ranks(); ++i) {
    const int r = (rank() + i) % ranks();
    Status outcome = waiter.wait(
        arrived(r), meetings_,
        {.rank = r,
         .what = what_.data(),
         .or_counter = Counter(aborted_),
         .or_value = 1});
    if (outcome.ok() && !arrived(r).reached(meetings_)) {
      outcome = Status(
          ErrorCode::kAborted,
          str("[comm] ", what_.data(), " was aborted by ",
              peers_->name(rank())));
    }
    if (!outcome.ok()) {
      return fail(std::move(outcome));
    }
  }
  copies_end_at_ = meetings_ + 1;
  return {};
}

Status Stage::meet_and_compare() {
  if (Status failed = meet(); !failed.ok()) {
    return failed;
  }
  std::string sentence =
      announcements().mismatch([&](int r) { return peers_->name(r); });
  return sentence.empty()
      ? Status()
      : Status(ErrorCode::kPeerMismatch, std::move(sentence));
}

void Stage::abort() { Counter(aborted_).post(1); }

Status Stage::fail(Status why) {
  if (failure_.ok()) {
    failure_ = std::move(why);
    peers_->give_up(failure_.message());
    stopped(rank()).post(kStopped);
    await_end_of_copies();
  }
  return failure_;
}

// A rank copies only between two meetings: no more when it has come to the
// next one (to this one, when that was never complete), has failed or ended.
bool Stage::may_still_copy(int rank) const {
  return !stopped(rank).reached(kStopped) &&
      !arrived(rank).reached(copies_end_at_) && !peers_->has_ended(rank);
}

void Stage::await_end_of_copies() {
  const Instant limit = clock_->now() + kEndOfCopies;
  for (int r = 0; r < ranks() && single_copy_; ++r) {
    while (r != rank() && may_still_copy(r) && clock_->now() < limit) {
      stopped(r).sleep_below(kStopped, std::chrono::milliseconds(5));
    }
  }
}

RemoteBytes Stage::remote(int rank, int piece_of, std::size_t offset) const {
  return {
      .pid = records()[index(rank)].pid,
      .address = announcements().addresses(rank)[index(piece_of)] + offset};
}

Status Stage::read(int rank, int piece_of, std::size_t offset, Bytes target) {
  Status copied = copy_from(remote(rank, piece_of, offset), target);
  return copied.ok() ? copied : copy_failed(rank, copied);
}

Status Stage::write(
    int rank,
    int piece_of,
    std::size_t offset,
    std::span<const std::byte> source) {
  Status copied = copy_to(remote(rank, piece_of, offset), source);
  return copied.ok() ? copied : copy_failed(rank, copied);
}

// A process loses its memory a moment before it is seen to have ended.
Status Stage::copy_failed(int rank, const Status& why) {
  const Instant limit = clock_->now() + kEndOfCopies;
  Status trouble = peers_->look();
  while (trouble.ok() && clock_->now() < limit) {
    stopped(rank).sleep_below(kStopped, std::chrono::milliseconds(5));
    trouble = peers_->look();
  }
  return fail(trouble.ok() ? why : std::move(trouble));
}

// --- What the kernel allows.

// Each reads a number of each other one, and tells whether it could.
Status Stage::probe(Duration deadline, bool& allowed) {
  const std::uint64_t secret = 0x5ca1ab1e00000000ULL + index(rank());
  std::uint64_t own = secret;
  std::vector<Bytes> offered(
      index(ranks()), std::as_writable_bytes(std::span(&own, 1)));
  const std::vector<std::size_t> wanted(index(ranks()), sizeof(own));
  const Call call{.what = "opening", .deadline = deadline};
  Status failed = begin(call, offered, wanted);
  if (failed.ok()) {
    failed = meet_and_compare();
  }
  if (!failed.ok()) {
    return failed;
  }
  std::byte could{1};
  for (int r = 0; r < ranks(); ++r) {
    std::uint64_t found = 0;
    const bool read =
        copy_from(
            remote(r, rank(), 0), std::as_writable_bytes(std::span(&found, 1)))
            .ok();
    if (!read || found - index(r) != secret - index(rank())) {
      could = std::byte{0};
    }
  }
  *buffer(rank()) = could;
  failed = meet();
  allowed = failed.ok();
  for (int r = 0; r < ranks(); ++r) {
    allowed = allowed && *buffer(r) == std::byte{1};
  }
  return failed;
}

// Tells the others who this is, and whether there is a core for each.
Status Stage::meet_first(Duration deadline) {
  RankRecord& own = records()[index(rank())];
  own.pid = ::getpid();
  if (::sched_getaffinity(0, sizeof(own.cores), &own.cores) != 0) {
    CPU_ZERO(&own.cores);
  }
  Status failed = begin({.what = "opening", .deadline = deadline}, {}, {});
  if (failed.ok()) {
    failed = meet();
  }
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const RankRecord& each : records()) {
    CPU_OR(&all, &all, &each.cores);
  }
  // Else it would keep who is awaited from running.
  spin_ = CPU_COUNT(&all) >= ranks() ? options_.spin : Duration(0);
  return failed;
}

Status Stage::open(Duration deadline) {
  Status failed = meet_first(deadline);
  if (!failed.ok() || ranks() == 1 || !options_.single_copy) {
    return failed;
  }
  bool allowed = false;
  failed = probe(deadline, allowed);
  if (failed.ok() && !allowed) {
    let_peers_copy(true);
    failed = probe(deadline, allowed);
    if (!allowed) {
      let_peers_copy(false);
    }
  }
  single_copy_ = failed.ok() && allowed;
  return failed;
}

}  // namespace sherd::comm::shm
