// SPDX-License-Identifier: Apache-2.0
#include "shm/peers.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include "base/check.h"
#include "base/printable.h"
#include "base/process.h"

namespace sherd::shm {
namespace {

constexpr unsigned kRankBits = 28;
constexpr std::uint64_t kRankMask = (std::uint64_t{1} << kRankBits) - 1;

std::uint64_t own_pid_namespace() {
  struct stat found = {};
  return ::stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

}  // namespace

enum class Peers::Trouble : std::uint8_t {
  kDied = 1,
  kNotResponding = 2,
  kGaveUp = 3,
};

std::size_t Peers::bytes(int ranks) {
  return sizeof(PeersHead) +
      static_cast<std::size_t>(ranks) * sizeof(PeerRecord);
}

Peers::Peers(std::span<std::byte> memory, PeersOptions options)
    : options_(std::move(options)),
      head_(reinterpret_cast<PeersHead*>(memory.data())),
      records_(
          reinterpret_cast<PeerRecord*>(memory.data() + sizeof(PeersHead)),
          static_cast<std::size_t>(options_.ranks)) {
  SHERD_ASSERT(
      options_.rank >= 0 && options_.rank < options_.ranks &&
          static_cast<std::uint64_t>(options_.ranks) <= kRankMask,
      "a rank of the segment");
  SHERD_ASSERT(
      options_.names.empty() || options_.names.size() == records_.size(),
      "a name for each rank");
  SHERD_ASSERT(has_room(memory, bytes(options_.ranks)), "memory for all ranks");
}

PeerRecord& Peers::record(int rank) const {
  return records_[static_cast<std::size_t>(rank)];
}

std::string PeersOptions::name(int index) const {
  return str(
      "rank ", names.empty() ? index : names[static_cast<std::size_t>(index)]);
}

void Peers::enter() {
  PeerRecord& own = record(options_.rank);
  own.pid = static_cast<std::int32_t>(::getpid());
  own.start_ticks = process_start_ticks(own.pid);
  own.pid_namespace = own_pid_namespace();
}

Status Peers::watch() {
  const PeerRecord& own = record(options_.rank);
  processes_.resize(records_.size());
  for (int r = 0; r < options_.ranks; ++r) {
    const PeerRecord& peer = record(r);
    if (peer.pid_namespace != own.pid_namespace) {
      return {
          ErrorCode::kFailedPrecondition,
          str("[shm] ", name(options_.rank), " and ", name(r),
              " share memory: expected them to share process ids too (the same "
              "container), found two namespaces")};
    }
    if (peer.pid == own.pid) {
      continue;
    }
    Descriptor process = open_pidfd(peer.pid);
    const int reason = errno;
    if (!process.open() && reason != ESRCH) {
      return {
          ErrorCode::kUnavailable,
          str("[shm] expected to watch ", name(r),
              ", pidfd_open failed: ", std::strerror(reason))};
    }
    // Opened before comparing: if the id was recycled before, the start times differ; if it is
    // recycled afterwards, the descriptor still refers to the right process.
    const bool same = peer.start_ticks == 0 ||
        process_start_ticks(peer.pid) == peer.start_ticks;
    if (process.open() && same) {
      processes_[static_cast<std::size_t>(r)] = std::move(process);
    } else {
      gone_.push_back(r);
    }
  }
  return {};
}

Status Peers::check() {
  if (auto known = known_trouble()) {
    return *std::move(known);
  }
  std::vector<pollfd> fds(processes_.size());
  for (std::size_t r = 0; r < fds.size(); ++r) {
    fds[r] = {processes_[r].get(), POLLIN, 0};  // poll() skips negative ones.
  }
  ::poll(fds.data(), fds.size(), 0);
  for (int r = 0; r < static_cast<int>(fds.size()); ++r) {
    const bool ended = fds[static_cast<std::size_t>(r)].revents != 0 ||
        std::ranges::count(gone_, r) > 0;
    if (ended && !has_left(r)) {
      record_trouble(Trouble::kDied, r);
    }
  }
  return known_trouble().value_or(Status());
}

// Relaxed: it is a hint that orders nothing.
void Peers::set_awaited(std::optional<int> rank) {
  const auto word = static_cast<std::uint32_t>(rank ? *rank + 1 : 0);
  std::atomic_ref(record(options_.rank).awaits)
      .store(word, std::memory_order_relaxed);
}

// The end of the chain of ranks that wait for each other. In a circle, which can also result from a
// rank that was stopped before it saw its wait end, all ranks are alike. A chain that ends at this
// rank is a circle as well: it waits for a message, which its record does not say.
int Peers::culprit(int rank) const {
  int last = rank;
  for (int hops = 0; hops < options_.ranks; ++hops) {
    const std::uint32_t word =
        std::atomic_ref(record(last).awaits).load(std::memory_order_relaxed);
    if (word == 0 || static_cast<int>(word) > options_.ranks) {
      return last == options_.rank ? rank : last;
    }
    last = static_cast<int>(word) - 1;
  }
  return rank;
}

Status Peers::blame(int rank) {
  record_trouble(Trouble::kNotResponding, culprit(rank));
  return *known_trouble();
}

void Peers::give_up(const std::string& why) {
  PeerRecord& own = record(options_.rank);
  // Relaxed: it only decides which thread of this process writes.
  if (std::atomic_ref(own.why_taken).exchange(1, std::memory_order_relaxed) !=
      0) {
    return;
  }
  const auto reason = shortened(why, own.why.size() - 1);
  std::memcpy(own.why.data(), reason.data(), reason.size());
  record_trouble(Trouble::kGaveUp, options_.rank);
}

// Release: pairs with the acquire in has_left(): a rank that sees that this one left also sees what
// it posted before.
void Peers::leave() {
  std::atomic_ref(record(options_.rank).has_left)
      .store(1, std::memory_order_release);
}

bool Peers::has_left(int rank) const {
  return std::atomic_ref(record(rank).has_left)
             .load(std::memory_order_acquire) != 0;
}

Status Peers::departure(int rank) const {
  return {ErrorCode::kPeerLost, str("[shm] ", name(rank), " has left")};
}

bool Peers::has_ended(int rank) const {
  pollfd process = {
      processes_[static_cast<std::size_t>(rank)].get(), POLLIN, 0};
  return std::ranges::count(gone_, rank) > 0 || ::poll(&process, 1, 0) > 0;
}

// Works like the writer of a seqlock: what the caller writes to its memory afterwards must not
// become visible before the mark. A release store alone orders only what comes before it, hence the
// fence after it. Pairs with the fence in has_revoked_memory().
void Peers::revoke_memory() {
  std::atomic_ref(record(options_.rank).memory_revoked)
      .store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Works like the reader of a seqlock: the fence keeps this load behind the loads of the copy. If
// the copy saw anything that was written after the mark, this load sees the mark.
bool Peers::has_revoked_memory(int rank) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return std::atomic_ref(record(rank).memory_revoked)
             .load(std::memory_order_seq_cst) != 0;
}

// Only the first trouble is kept: a rank that fails because of another one's death ends soon after,
// and must not be taken for the cause. It records the cause before it ends, so a rank that sees its
// end also sees the cause. Release: pairs with the acquire in known_trouble(), which reads `why`.
void Peers::record_trouble(Trouble what, int rank) {
  const std::uint64_t word = static_cast<std::uint64_t>(what)
          << (2 * kRankBits) |
      static_cast<std::uint64_t>(rank) << kRankBits |
      static_cast<std::uint64_t>(options_.rank);
  std::uint64_t none = 0;
  std::atomic_ref(head_->trouble)
      .compare_exchange_strong(
          none, word, std::memory_order_release, std::memory_order_relaxed);
}

std::optional<Status> Peers::known_trouble() const {
  const std::uint64_t word =
      std::atomic_ref(head_->trouble).load(std::memory_order_acquire);
  if (word == 0) {
    return std::nullopt;
  }
  const int rank = static_cast<int>(word >> kRankBits & kRankMask);
  const int witness = static_cast<int>(word & kRankMask);
  switch (static_cast<Trouble>(word >> (2 * kRankBits))) {
    case Trouble::kDied:
      return Status(
          ErrorCode::kPeerLost, str("[shm] ", name(rank), " has died"));
    case Trouble::kNotResponding:
      return Status(
          ErrorCode::kDeadlineExceeded,
          str("[shm] ", name(rank), " is not responding, ", name(witness),
              " timed out waiting for it"));
    case Trouble::kGaveUp:
      break;
  }
  return Status(
      ErrorCode::kAborted,
      str("[shm] ", name(rank), " gave up: ", record(rank).why.data()));
}

}  // namespace sherd::shm
