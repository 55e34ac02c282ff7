// SPDX-License-Identifier: Apache-2.0
#include "world/peer_watch.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <utility>
#include "base/check.h"
#include "base/clock.h"
#include "base/process.h"

namespace sherd::world {
namespace {

constexpr int kTickMs = 100;
constexpr std::chrono::milliseconds kPatienceForPage(300);

std::string name_of(const HostIdentity& host) {
  return host.fake.empty() ? host.hostname
                           : str(host.hostname, " (fake host ", host.fake, ")");
}

}  // namespace

void PeerWatch::add_peer(const RankRecord& record) {
  Descriptor process = open_pidfd(record.pid);
  const bool ended = !process.open() && errno == ESRCH;
  Peer peer{.board = ExitStatusPage::open(record.pid, record.exit_status_fd)};
  const bool same_process = record.start_ticks == 0 ||
      process_start_ticks(record.pid) == record.start_ticks;
  const bool gone = ended || !same_process;
  if (!gone) {
    peer.process = std::move(process);
  }
  peers_.emplace(record.rank, std::move(peer));
  if (gone) {
    process_ended(record.rank);
  }
}

// Why `rank` is or will be lost, according to the exit status pages only. Nothing if it left in
// order or has recorded nothing. Follows blame from page to page until it comes back to a rank: a
// rank that has left while others went on finds them ended later, because of itself, and what they
// recorded first is the cause.
std::optional<PeerLoss> PeerWatch::explanation(int rank) const {
  std::optional<PeerLoss> cause;
  std::set<int> visited;
  while (visited.insert(rank).second) {
    const auto it = peers_.find(rank);
    if (it == peers_.end() || it->second.board == nullptr) {
      break;
    }
    const ExitStatus notice = it->second.board->read();
    if (!notice.trouble) {
      break;
    }
    const bool own_fault = notice.trouble->rank == rank;
    if (!own_fault && visited.contains(notice.trouble->rank)) {
      break;
    }
    cause = PeerLoss{notice.trouble->rank, notice.trouble->how, own_fault};
    if (own_fault) {
      break;
    }
    rank = notice.trouble->rank;
  }
  // A rank that blames this one waited for it in vain: that explains that rank's end and is no loss
  // for this one.
  return cause && cause->rank != own_rank_ ? cause : std::nullopt;
}

// The thread of the watch may not have had a core since then.
bool PeerWatch::sees_end_of(const Peer& peer) const {
  std::array<pollfd, 2> fds{
      {{stop_event_.get(), POLLIN, 0}, {peer.process.get(), POLLIN, 0}}};
  // After stop() ends are in order. A descriptor that is not open is skipped.
  return ::poll(fds.data(), fds.size(), 0) > 0 && fds[0].revents == 0 &&
      fds[1].revents != 0;
}

void PeerWatch::process_ended(int rank) {
  const auto& board = peers_.at(rank).board;
  const bool left =
      board != nullptr && board->read().end == ExitStatus::End::kLeft;
  if (left) {
    return;
  }
  record(rank, explanation(rank).value_or(PeerLoss{rank, "died"}));
}

void PeerWatch::record(int rank, const PeerLoss& cause) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    const bool known = std::ranges::any_of(
        lost_, [rank](const Entry& entry) { return entry.rank == rank; });
    if (known) {
      return;
    }
    // Recorded first: a thread that finds the loss here may end this process at once, and then only
    // the page tells the others why.
    own_board_.record_failure(cause.rank, cause.how);
    lost_.push_back({rank, cause});
  }
  changed_.notify_all();
  call_subscribers();
}

void PeerWatch::call_subscribers() {
  const std::lock_guard<std::mutex> lock(callbacks_mu_);
  for (const auto& [handle, look_around] : callbacks_) {
    look_around();
  }
}

void PeerWatch::run() {
  ::pthread_setname_np(::pthread_self(), "peer-watch");
  std::vector<pollfd> fds{{stop_event_.get(), POLLIN, 0}};
  std::vector<int> ranks{-1};
  for (const auto& [rank, peer] : peers_) {
    if (peer.process.open()) {
      fds.push_back({peer.process.get(), POLLIN, 0});
      ranks.push_back(rank);
    }
  }
  for (;;) {
    const int ready = ::poll(fds.data(), fds.size(), kTickMs);
    if ((ready < 0 && errno != EINTR) || fds[0].revents != 0) {
      return;
    }
    if (ready == 0) {
      call_subscribers();
    }
    for (std::size_t i = 1; ready > 0 && i < fds.size(); ++i) {
      if (fds[i].revents != 0) {
        fds[i].fd = -1;  // poll() skips it from now on.
        process_ended(ranks[i]);
      }
    }
  }
}

PeerWatch::PeerWatch(
    int own_rank, const std::vector<RankRecord>& records, ExitStatusPage& board)
    : own_rank_(own_rank),
      own_board_(board),
      stop_event_(::eventfd(0, EFD_CLOEXEC)) {
  const RankRecord& own = records.at(static_cast<std::size_t>(own_rank));
  for (const RankRecord& record : records) {
    hosts_of_ranks_.push_back(
        same_host(record.host, own.host) ? "" : name_of(record.host));
    if (record.rank != own_rank && same_pids(record.host, own.host)) {
      add_peer(record);
    }
  }
  if (records.size() > 1) {
    thread_ = std::jthread([this] { run(); });
  }
}

PeerWatch::~PeerWatch() { stop(); }

std::optional<PeerLoss> PeerWatch::first_lost(
    const std::vector<int>& ranks) const {
  const std::lock_guard<std::mutex> lock(mu_);
  for (const Entry& entry : lost_) {
    if (std::ranges::find(ranks, entry.rank) != ranks.end()) {
      return entry.cause;
    }
  }
  return std::nullopt;
}

std::optional<PeerLoss> PeerWatch::first_lost() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return lost_.empty() ? std::nullopt : std::optional(lost_.front().cause);
}

std::optional<PeerLoss> PeerWatch::wait_lost(
    std::chrono::milliseconds timeout) {
  {
    std::unique_lock<std::mutex> lock(mu_);
    if (changed_.wait_for(lock, timeout, [this] { return !lost_.empty(); })) {
      return lost_.front().cause;
    }
  }
  for (const auto& [rank, peer] : peers_) {
    if (sees_end_of(peer)) {
      process_ended(rank);
    }
  }
  return first_lost();
}

PeerLoss PeerWatch::explain_closed(
    int rank, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kSlice(2);
  const SteadyClock clock;
  const auto it = peers_.find(rank);
  const bool can_learn = it != peers_.end() &&
      (it->second.process.open() || it->second.board != nullptr);
  // Without its process only what it has recorded already tells anything.
  const bool shows_its_end = can_learn && it->second.process.open();
  const Instant give_up = clock.now() +
      (shows_its_end ? patience : std::min(patience, kPatienceForPage));
  PeerLoss cause{rank, "closed its connection"};
  while (can_learn) {
    // Before the looks: this thread may have no core for longer than its patience.
    const bool last_look = clock.now() >= give_up;
    if (sees_end_of(it->second)) {
      process_ended(rank);
    }
    if (const auto known = first_lost({rank})) {
      return *known;
    }
    const ExitStatus notice =
        it->second.board != nullptr ? it->second.board->read() : ExitStatus();
    if (const auto found = explanation(rank)) {
      cause = *found;
      break;
    }
    if (notice.end == ExitStatus::End::kLeft) {
      cause.how = "left the job";
      break;
    }
    // It blames this rank, or a loss that this rank caused, so its page explains nothing further.
    if (notice.trouble || last_look) {
      break;
    }
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait_for(lock, kSlice);
  }
  record(rank, cause);
  return first_lost({rank}).value_or(cause);
}

void PeerWatch::report(const PeerLoss& loss) { record(loss.rank, loss); }

void PeerWatch::give_up(const std::string& how) {
  own_board_.record_failure(own_rank_, how);
}

int PeerWatch::subscribe(std::function<void()> look_around) {
  const std::lock_guard<std::mutex> lock(callbacks_mu_);
  const int handle = next_handle_++;
  callbacks_.emplace(handle, std::move(look_around));
  return handle;
}

void PeerWatch::unsubscribe(int handle) {
  const std::lock_guard<std::mutex> lock(callbacks_mu_);
  callbacks_.erase(handle);
}

bool PeerWatch::has_ended(int rank) const {
  const auto it = peers_.find(rank);
  return it != peers_.end() && it->second.board != nullptr &&
      it->second.board->read().end != ExitStatus::End::kNone;
}

bool PeerWatch::watches(int rank) const {
  const auto it = peers_.find(rank);
  return it != peers_.end() && it->second.process.open();
}

std::string PeerWatch::host_of(int rank) const {
  return hosts_of_ranks_.at(static_cast<std::size_t>(rank));
}

std::string PeerWatch::place_of(int rank) const {
  const auto host = host_of(rank);
  return host.empty() ? "" : str("; rank ", rank, " is on ", host);
}

std::string PeerWatch::text_of(
    const PeerLoss& loss, const std::string& context) const {
  return str(
      "[world] rank ", loss.rank, " was lost: it ", loss.how, context,
      place_of(loss.rank));
}

void PeerWatch::stop() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written =
      ::write(stop_event_.get(), &one, sizeof(one));
  if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace sherd::world
