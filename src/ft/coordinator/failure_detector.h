// SPDX-License-Identifier: Apache-2.0
//
// FailureDetector finds replicas that are silent, hang or are slow, from what they say of
// their training threads. A phase is as long as one serial of a TrainingProgress stands;
// how long is usual is learnt for each life and activity. When many wait for one,
// that one hangs, not its neighbours; where they wait in a circle, an end of the
// link that is dead. Time is an argument. Thread rule: one thread; a value.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "base/clock.h"
#include "ft/coordinator/hang_report.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

struct FailureDetectorOptions {
  // Behaviour. Nothing was heard for so long, four beats: it is lost.
  Duration dead_after = std::chrono::seconds(1);
  // A phase is slow above so many usual ones, and above the floor.
  double soft_factor = 3;
  Duration soft_floor = std::chrono::milliseconds(500);
  // It hangs above so many usual ones, and above the floor; the first few
  // computations of a life may take longer.
  double hard_factor = 10;
  Duration hard_floor = std::chrono::seconds(5);
  Duration first_floor = std::chrono::seconds(60);
  int first_steps = 5;
};

struct Finding {
  enum class Kind {
    kSilent,  // Lost.
    kHung,    // To be taken for lost until its serial moves.
    kSlow,    // To be shown.
  };
  Kind kind = Kind::kSilent;
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::string reason;
  // That is to blame, for kHung.
  std::optional<DeadLink> link{};
};

class FailureDetector {
 public:
  explicit FailureDetector(const FailureDetectorOptions& options)
      : options_(options) {}

  void received(
      ReplicaId replica,
      Incarnation incarnation,
      const TrainingProgress& progress,
      const std::vector<TrainingProgress>& ranks,
      Instant now);
  // Nothing is expected from this life any more.
  void ended(ReplicaId replica, Incarnation incarnation);

  // What is new since the last call: each phase is found slow once and hung once.
  // A silent life is forgotten.
  std::vector<Finding> tick(Instant now);

  // Found to hang, and has not moved since.
  bool hung(ReplicaId replica, Incarnation incarnation) const;
  // Found to be slow in the phase that it is in.
  bool slow(ReplicaId replica, Incarnation incarnation) const;
  // What its ranks do; none: it is not watched, or says nothing of them.
  std::vector<RankActivity> ranks(
      ReplicaId replica, Incarnation incarnation, Instant now) const;

 private:
  using Life = std::pair<ReplicaId, Incarnation>;
  static constexpr std::size_t kActivities = 6;
  struct MonitoredRank {
    TrainingProgress progress;
    Instant since{};  // This activity and serial.
  };
  struct MonitoredReplica {
    TrainingProgress progress;
    std::vector<MonitoredRank> ranks;
    Instant heard_at{};
    Instant since{};                                         // This serial.
    std::array<std::optional<double>, kActivities> usual_s;  // Moving average.
    int computed = 0;  // Computations that ended.
    bool slow = false;
    bool hung = false;
  };

  std::optional<double> usual_s(const MonitoredReplica& watched) const;
  Duration hard_limit(const MonitoredReplica& watched) const;
  Duration soft_limit(const MonitoredReplica& watched) const;
  bool over_hard_limit(const MonitoredReplica& watched, Instant now) const;
  // For how long one of its agents has been silent; 0: none has.
  Duration quiet(const MonitoredReplica& watched) const;
  bool hangs(const MonitoredReplica& watched, Instant now) const;
  struct HangCulprit {
    Life life;
    std::optional<DeadLink> link;
  };
  // Where the chain of who waits for whom from `life` ends, by the hard limit.
  std::optional<HangCulprit> culprit(const Life& life, Instant now) const;
  // Between these.
  std::optional<DeadLink> dead_link_of(
      const std::vector<Life>& lives, Instant now) const;
  ReplicaActivity view(const Life& life, Instant now) const;
  // Who waits for it, and where.
  std::string report_of(const Life& life, Instant now) const;
  std::string why_hung(const HangCulprit& blame, Instant now) const;
  // The newest life of a replica that is watched.
  const Life* life_of(ReplicaId replica) const;
  void find_silent(Instant now, std::vector<Finding>& found);
  void find_hung(Instant now, std::vector<Finding>& found);
  void find_slow(Instant now, std::vector<Finding>& found);

  FailureDetectorOptions options_;
  std::map<Life, MonitoredReplica> watched_;
  std::map<ReplicaId, Life> newest_;
};

}  // namespace sherd::ft
