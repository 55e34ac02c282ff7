// SPDX-License-Identifier: Apache-2.0
#include "world/peer_watch.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/process.h"
#include "world/exit_status_page.h"

namespace sherd::world {
namespace {

constexpr int kTickMs = 100;
constexpr std::chrono::milliseconds kPatienceForPage(300);

std::string name_of(const HostIdentity& host) {
  return host.fake.empty() ? host.hostname
                           : str(host.hostname, " (fake host ", host.fake, ")");
}

}  // namespace

struct PeerWatch::Impl {
  struct Peer {
    Descriptor process{};                   // Not open if it cannot be watched.
    std::unique_ptr<ExitStatusPage> board;  // Null if it is unreadable.
  };

  const int own_rank;
  ExitStatusPage& own_board;
  // Both are constant after construction.
  std::map<int, Peer> peers;                // Indexed by rank.
  std::vector<std::string> hosts_of_ranks;  // As host_of() tells them.
  // Written once by stop() and never read, so that poll() finds it readable from then on.
  const Descriptor stop_event{::eventfd(0, EFD_CLOEXEC)};

  mutable std::mutex mu;
  // Only record() changes `lost`, with mu held, and notifies all waiters after releasing it: a
  // waiter has looked at `lost` under mu and is already asleep, or finds the change. Calls of
  // record() end before this object does.
  mutable std::condition_variable changed;
  // Guarded by mu. In the order in which losses were noticed; `cause` is what brought `rank` down.
  struct Entry {
    int rank;
    PeerLoss cause;
  };
  std::vector<Entry> lost;
  // REQUIRES: mu is held.
  std::optional<PeerLoss> first_cause() const {
    return lost.empty() ? std::nullopt
                        : std::optional<PeerLoss>(lost.front().cause);
  }
  // Held while callbacks run, so that unsubscribe() waits for them. Never acquired while holding
  // mu.
  std::mutex callbacks_mu;
  std::map<int, std::function<void()>> callbacks;  // Guarded by callbacks_mu.
  // Also guarded by callbacks_mu.
  int next_handle = 0;

  std::jthread thread;

  Impl(int own, ExitStatusPage& board) : own_rank(own), own_board(board) {}

  void add_peer(const RankRecord& record);
  std::optional<PeerLoss> explanation(int rank) const;
  bool sees_end_of(const Peer& peer) const;
  void process_ended(int rank);
  void record(int rank, const PeerLoss& cause);
  void call_subscribers();
  void run();
};

void PeerWatch::Impl::add_peer(const RankRecord& record) {
  Descriptor process = open_pidfd(record.pid);
  const bool ended = !process.open() && errno == ESRCH;
  Peer peer{.board = ExitStatusPage::open(record.pid, record.exit_status_fd)};
  const bool same_process = record.start_ticks == 0 ||
      process_start_ticks(record.pid) == record.start_ticks;
  const bool gone = ended || !same_process;
  if (!gone) {
    peer.process = std::move(process);
  }
  peers.emplace(record.rank, std::move(peer));
  if (gone) {
    process_ended(record.rank);
  }
}

// Why `rank` is or will be lost, according to the exit status pages only. Nothing if it left in
// order or has recorded nothing. Follows blame from page to page until it comes back to a rank: a
// rank that has left while others went on finds them ended later, because of itself, and what they
// recorded first is the cause.
std::optional<PeerLoss> PeerWatch::Impl::explanation(int rank) const {
  std::optional<PeerLoss> cause;
  std::set<int> visited;
  while (visited.insert(rank).second) {
    const auto it = peers.find(rank);
    if (it == peers.end() || it->second.board == nullptr) {
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
  return cause && cause->rank != own_rank ? cause : std::nullopt;
}

// The thread of the watch may not have had a core since then.
bool PeerWatch::Impl::sees_end_of(const Peer& peer) const {
  std::array<pollfd, 2> fds{
      {{stop_event.get(), POLLIN, 0}, {peer.process.get(), POLLIN, 0}}};
  // After stop() ends are in order. A descriptor that is not open is skipped.
  return ::poll(fds.data(), fds.size(), 0) > 0 && fds[0].revents == 0 &&
      fds[1].revents != 0;
}

void PeerWatch::Impl::process_ended(int rank) {
  const auto& board = peers.at(rank).board;
  const bool left =
      board != nullptr && board->read().end == ExitStatus::End::kLeft;
  if (left) {
    return;
  }
  record(rank, explanation(rank).value_or(PeerLoss{rank, "died"}));
}

void PeerWatch::Impl::record(int rank, const PeerLoss& cause) {
  {
    const std::lock_guard<std::mutex> lock(mu);
    const bool known = std::ranges::any_of(
        lost, [rank](const Entry& entry) { return entry.rank == rank; });
    if (known) {
      return;
    }
    // Recorded first: a thread that finds the loss here may end this process at once, and then only
    // the page tells the others why.
    own_board.record_failure(cause.rank, cause.how);
    lost.push_back({rank, cause});
  }
  changed.notify_all();
  call_subscribers();
}

void PeerWatch::Impl::call_subscribers() {
  const std::lock_guard<std::mutex> lock(callbacks_mu);
  for (const auto& [handle, look_around] : callbacks) {
    look_around();
  }
}

void PeerWatch::Impl::run() {
  ::pthread_setname_np(::pthread_self(), "peer-watch");
  std::vector<pollfd> fds{{stop_event.get(), POLLIN, 0}};
  std::vector<int> ranks{-1};
  for (const auto& [rank, peer] : peers) {
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
    : impl_(std::make_unique<Impl>(own_rank, board)) {
  const RankRecord& own = records.at(static_cast<std::size_t>(own_rank));
  for (const RankRecord& record : records) {
    impl_->hosts_of_ranks.push_back(
        same_host(record.host, own.host) ? "" : name_of(record.host));
    if (record.rank != own_rank && same_pids(record.host, own.host)) {
      impl_->add_peer(record);
    }
  }
  if (records.size() > 1) {
    impl_->thread = std::jthread([impl = impl_.get()] { impl->run(); });
  }
}

PeerWatch::~PeerWatch() { stop(); }

std::optional<PeerLoss> PeerWatch::first_lost(
    const std::vector<int>& ranks) const {
  const std::lock_guard<std::mutex> lock(impl_->mu);
  for (const Impl::Entry& entry : impl_->lost) {
    if (std::ranges::find(ranks, entry.rank) != ranks.end()) {
      return entry.cause;
    }
  }
  return std::nullopt;
}

std::optional<PeerLoss> PeerWatch::first_lost() const {
  const std::lock_guard<std::mutex> lock(impl_->mu);
  return impl_->first_cause();
}

std::optional<PeerLoss> PeerWatch::wait_lost(
    std::chrono::milliseconds timeout) const {
  {
    std::unique_lock<std::mutex> lock(impl_->mu);
    if (impl_->changed.wait_for(
            lock, timeout, [this] { return !impl_->lost.empty(); })) {
      return impl_->first_cause();
    }
  }
  for (const auto& [rank, peer] : impl_->peers) {
    if (impl_->sees_end_of(peer)) {
      impl_->process_ended(rank);
    }
  }
  return first_lost();
}

PeerLoss PeerWatch::explain_closed(
    int rank, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kSlice(2);
  const SteadyClock clock;
  const auto it = impl_->peers.find(rank);
  const bool can_learn = it != impl_->peers.end() &&
      (it->second.process.open() || it->second.board != nullptr);
  // Without its process only what it has recorded already tells anything.
  const bool shows_its_end = can_learn && it->second.process.open();
  const Instant give_up = clock.now() +
      (shows_its_end ? patience : std::min(patience, kPatienceForPage));
  PeerLoss cause{rank, "closed its connection"};
  while (can_learn) {
    // Before the looks: this thread may have no core for longer than its patience.
    const bool last_look = clock.now() >= give_up;
    if (impl_->sees_end_of(it->second)) {
      impl_->process_ended(rank);
    }
    if (const auto known = first_lost({rank})) {
      return *known;
    }
    const ExitStatus notice =
        it->second.board != nullptr ? it->second.board->read() : ExitStatus();
    if (const auto found = impl_->explanation(rank)) {
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
    std::unique_lock<std::mutex> lock(impl_->mu);
    impl_->changed.wait_for(lock, kSlice);
  }
  impl_->record(rank, cause);
  return first_lost({rank}).value_or(cause);
}

std::optional<PeerLoss> PeerWatch::explanation(int rank) const {
  return impl_->explanation(rank);
}

void PeerWatch::report(const PeerLoss& loss) { impl_->record(loss.rank, loss); }

void PeerWatch::give_up(const std::string& how) {
  impl_->own_board.record_failure(impl_->own_rank, how);
}

int PeerWatch::subscribe(std::function<void()> look_around) {
  const std::lock_guard<std::mutex> lock(impl_->callbacks_mu);
  const int handle = impl_->next_handle++;
  impl_->callbacks.emplace(handle, std::move(look_around));
  return handle;
}

void PeerWatch::unsubscribe(int handle) {
  const std::lock_guard<std::mutex> lock(impl_->callbacks_mu);
  impl_->callbacks.erase(handle);
}

bool PeerWatch::has_ended(int rank) const {
  const auto it = impl_->peers.find(rank);
  return it != impl_->peers.end() && it->second.board != nullptr &&
      it->second.board->read().end != ExitStatus::End::kNone;
}

bool PeerWatch::watches(int rank) const {
  const auto it = impl_->peers.find(rank);
  return it != impl_->peers.end() && it->second.process.open();
}

std::string PeerWatch::host_of(int rank) const {
  return impl_->hosts_of_ranks.at(static_cast<std::size_t>(rank));
}

std::string PeerWatch::place_of(int rank) const {
  const auto host = host_of(rank);
  return host.empty() ? "" : str("; rank ", rank, " is on ", host);
}

void PeerWatch::stop() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written =
      ::write(impl_->stop_event.get(), &one, sizeof(one));
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  }
}

}  // namespace sherd::world
