// SPDX-License-Identifier: Apache-2.0
//
// StatusBoard collects what the status page shows of a run: the server passes it each report,
// record, view and loss, and it builds a RunStatus from them. It also outlives the state machine
// while the log cannot be written. It decides nothing. Thread rule: one thread; a value.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include "base/clock.h"
#include "ft/coordinator/failure_detector.h"
#include "ft/coordinator/pace.h"
#include "ft/coordinator/status.h"
#include "ft/protocol/coordinator.h"
#include "ft/protocol/history.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

class StatusBoard {
 public:
  explicit StatusBoard(Instant now) : began_(now) {}

  // Takes a report that came from `address`. A report that has no place, such as that of a former
  // incarnation, does not replace the row of a replica that counts.
  void received(
      const Report& report,
      const std::string& address,
      Instant now,
      bool has_place = true);
  // The record is on disk.
  void wrote(const Record& record, const std::string& reason, Instant now);
  void told(
      ReplicaId replica,
      Incarnation incarnation,
      const std::shared_ptr<const RunView>& view);
  // The connection has ended. This counts as a failure unless the replica was leaving, had finished
  // or was fenced.
  void lost(
      ReplicaId replica,
      Incarnation incarnation,
      const std::string& cause,
      Instant now);
  // Any other failure.
  void failed(
      const std::string& culprit, const std::string& cause, Instant now);
  // The replica takes longer than usual; logged once a minute.
  void slow(ReplicaId replica, const std::string& reason, Instant now);
  void noticed(
      const DetectedFault& notice, const std::string& reason, Instant now);
  void count(const std::string& counter) { ++counters_[counter]; }

  // What the board does not know itself: the machine's history, which is null while there is no
  // machine; why nothing is decided; how long the process did not run.
  struct StatusSources {
    const History* history = nullptr;
    std::string complaint;
    Duration slept{};
    // Knows who hangs or is slow, and the activity of ranks, by its own clock; may be null.
    const FailureDetector* detector = nullptr;
    Instant watched_at{};
  };
  // Not const, because it remembers since when each replica has been in its state.
  RunStatus status(const StatusSources& sources, Instant now);

 private:
  struct ReplicaRow {
    Report report;
    std::string address;
    bool connected = true;
    bool fenced = false;
    std::optional<Instant> called_slow;
    std::string state;  // As shown in the last status.
    Instant since{};
  };
  struct Failure {
    std::string culprit;
    std::string cause;
    Instant at{};
  };
  ReplicaRow* life(ReplicaId replica, Incarnation incarnation);
  bool is_there(ReplicaId replica) const;
  // REQUIRES: the report has a suspicion.
  bool is_news(const Report& report) const;
  bool goes_in_order(ReplicaId replica) const;
  std::string state_of(const ReplicaRow& known, bool hangs) const;
  std::string stage() const;
  ReplicaStatus show(
      ReplicaId replica,
      ReplicaRow& known,
      const StatusSources& sources,
      Instant now) const;

  Instant began_;
  Instant committed_at_{};
  Pace pace_;
  // The last view sent that fences nobody.
  std::shared_ptr<const RunView> view_ = std::make_shared<const RunView>();
  std::map<ReplicaId, ReplicaRow> rows_;
  std::deque<Failure> failures_;  // Newest first.
  std::map<std::string, std::uint64_t> counters_;
};

}  // namespace sherd::ft
