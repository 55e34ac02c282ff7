// SPDX-License-Identifier: Apache-2.0
//
// RunBook keeps what the coordinator shows of a run: it is told what was heard,
// written, ordered and lost, and makes a RunStatus of it. It decides nothing.
// Thread rule: one thread; a value.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include "base/clock.h"
#include "ft/coordinator/pace.h"
#include "ft/coordinator/status.h"
#include "ft/coordinator/watch.h"
#include "ft/protocol/coordinator.h"
#include "ft/protocol/history.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

class RunBook {
 public:
  explicit RunBook(Instant now) : began_(now) {}

  // From a connection of `address`. One without a place, as of a former life, is
  // not shown instead of one that counts.
  void heard(
      const Report& report,
      const std::string& address,
      Instant now,
      bool has_place = true);
  // On the disk.
  void wrote(const Record& record, const std::string& reason, Instant now);
  void told(ReplicaId replica, Incarnation incarnation, const Order& order);
  // Its connection ended. A failure, unless it said that it leaves or has finished,
  // or was fenced.
  void lost(
      ReplicaId replica,
      Incarnation incarnation,
      const std::string& cause,
      Instant now);
  // Of whatever it was.
  void failed(
      const std::string& culprit, const std::string& cause, Instant now);
  // It takes longer than usual: said once a minute.
  void slow(ReplicaId replica, const std::string& reason, Instant now);
  void noticed(const Notice& notice, const std::string& reason, Instant now);
  void count(const std::string& counter) { ++counters_[counter]; }

  struct Mood {
    bool hung = false;
    bool slow = false;
  };
  // For the next status(); ignored for a life that is not the newest.
  void watched(ReplicaId replica, Incarnation incarnation, const Mood& mood);

  // What others know: the machine's history, null while there is no machine; why
  // nothing is decided; for how long the process stood still.
  struct Beside {
    const History* history = nullptr;
    std::string complaint;
    Duration slept{};
    // What ranks do, by its own clock; null: nobody watches.
    const Watch* watch = nullptr;
    Instant watched_at{};
  };
  // Remembers since when each replica is in its state, hence not const.
  RunStatus status(const Beside& beside, Instant now);

 private:
  struct Known {
    Report report;
    std::string address;
    bool connected = true;
    bool fenced = false;
    Mood mood;
    std::optional<Instant> called_slow;
    std::string state;  // That was shown last.
    Instant since{};
  };
  struct Failure {
    std::string culprit;
    std::string cause;
    Instant at{};
  };
  Known* life(ReplicaId replica, Incarnation incarnation);
  bool is_there(ReplicaId replica) const;
  bool goes_in_order(ReplicaId replica) const;
  std::string state_of(const Known& known) const;
  std::string stage() const;
  ReplicaStatus show(
      ReplicaId replica, Known& known, const Beside& beside, Instant now) const;

  Instant began_;
  Instant committed_at_{};
  Pace pace_;
  Order order_;  // The last that anybody was told and not fenced by.
  std::map<ReplicaId, Known> known_;
  std::deque<Failure> failures_;  // Newest first.
  std::map<std::string, std::uint64_t> counters_;
};

}  // namespace sherd::ft
