// SPDX-License-Identifier: Apache-2.0
//
// PeerWatch finds out which ranks of the job are lost, and which was lost first. It watches the
// processes of this host through pidfds, so that a death is seen within a millisecond even by ranks
// that communicate with nobody; about ranks of other hosts it knows only what report() is given.
// When a rank dies, its exit status page is read: a rank that left in order is not lost, and one
// that died because it had seen another rank lost does not count as the first (a killed rank brings
// down its neighbours within milliseconds; the error must name the cause). Its thread "peer-watch"
// sleeps until a process ends, and ticks, see subscribe(). Thread rule: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>
#include "base/descriptor.h"
#include "world/exit_status_page.h"
#include "world/rank_record.h"

namespace sherd::world {

struct PeerLoss {
  int rank;
  std::string how;       // After "rank 3 ": "died", "gave up: out of memory".
  bool gave_up = false;  // It ended by its own decision and said why.
};

class PeerWatch {
 public:
  // Watches the peers in `records` that share process ids with this rank; `records` is indexed by
  // rank and includes this rank. A peer that is already dead is lost at once. `board` is this
  // rank's own exit status page and must outlive the watch.
  PeerWatch(
      int own_rank,
      const std::vector<RankRecord>& records,
      ExitStatusPage& board);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // The cause of the first loss among `ranks`, which may be the loss of a rank outside them;
  // nothing while all of them are healthy.
  std::optional<PeerLoss> first_lost(const std::vector<int>& ranks) const;
  // The same over all ranks.
  std::optional<PeerLoss> first_lost() const;
  // Waits for a loss; returns nothing if `timeout` has passed.
  std::optional<PeerLoss> wait_lost(std::chrono::milliseconds timeout);

  // For evidence that the watch cannot see, a connection that `rank` closed: waits up to `patience`
  // for an explanation (its death, its exit status page) and records that, otherwise records
  // "closed its connection". Returns the cause.
  PeerLoss explain_closed(int rank, std::chrono::milliseconds patience);

  // What brought `rank` down, or made it give up, according to the exit status pages. Nothing if it
  // left in order, if nothing is recorded, or if it blames this rank.
  std::optional<PeerLoss> explanation(int rank) const;

  // Records that `rank` is lost, here and on this rank's exit status page, and wakes all waiters.
  // Later reports of the same rank change nothing.
  void report(const PeerLoss& loss);

  // Records on this rank's exit status page that it ends its part by its own decision, e.g. how =
  // "gave up: out of memory". Only the first trouble is kept.
  void give_up(const std::string& how);

  // `look_around` runs after each loss, on the thread that noticed it, and ten times a second on
  // the watch's thread, for conditions that have to be polled. It must not block or call
  // subscribe(). Returns a handle for unsubscribe(), which waits for a running call to end.
  int subscribe(std::function<void()> look_around);
  void unsubscribe(int handle);

  // Whether the exit status page of `rank` says that it has ended, in order or not.
  bool has_ended(int rank) const;

  // Whether `rank` is watched through its process.
  bool watches(int rank) const;

  // The name of the host of `rank`; empty if that is this rank's host.
  std::string host_of(int rank) const;
  // The same as the end of an error about that rank: "; rank 3 is on node1", or nothing.
  std::string place_of(int rank) const;
  // "[world] rank 3 was lost: it died", then `context`, then place_of() that rank.
  std::string text_of(
      const PeerLoss& loss, const std::string& context = "") const;

  // Ends watching but keeps what was recorded. Idempotent. Must be called before peers may exit in
  // order.
  void stop();

 private:
  struct Peer {
    Descriptor process{};                   // Not open if it cannot be watched.
    std::unique_ptr<ExitStatusPage> board;  // Null if it is unreadable.
  };
  // A loss: `cause` is what brought `rank` down.
  struct Entry {
    int rank;
    PeerLoss cause;
  };
  void add_peer(const RankRecord& record);
  bool sees_end_of(const Peer& peer) const;
  void process_ended(int rank);
  void record(int rank, const PeerLoss& cause);
  void call_subscribers();
  void run();

  const int own_rank_;
  ExitStatusPage& own_board_;
  // Both are constant after construction.
  std::map<int, Peer> peers_;                // Indexed by rank.
  std::vector<std::string> hosts_of_ranks_;  // As host_of() tells them.
  // Written once by stop() and never read, so that poll() finds it readable from then on.
  const Descriptor stop_event_;

  mutable std::mutex mu_;
  // Only record() changes `lost_`, with mu_ held, and notifies all waiters after releasing it: a
  // waiter has looked at `lost_` under mu_ and is already asleep, or finds the change. Calls of
  // record() end before this object does.
  std::condition_variable changed_;
  // Guarded by mu_. In the order in which losses were noticed.
  std::vector<Entry> lost_;
  // Held while callbacks run, so that unsubscribe() waits for them. Never acquired while holding
  // mu_.
  std::mutex callbacks_mu_;
  // Guarded by callbacks_mu_:
  std::map<int, std::function<void()>> callbacks_;
  int next_handle_ = 0;

  std::jthread thread_;
};

}  // namespace sherd::world
