// SPDX-License-Identifier: Apache-2.0
//
// FailureDetector finds replicas that are silent, hang or are slow, from the progress that they
// report of their training threads. A phase lasts as long as the serial of a TrainingProgress does
// not change; its usual length is learnt for each incarnation and activity. Until one phase of an
// activity has been seen to end, it may take long, such as a first optimizer step, a restore or a
// first collective. When many replicas wait for one, that one hangs and not its neighbours; when
// they wait in a circle, an end of the dead link does. Time is passed as an argument. Thread rule:
// one thread; a value.
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
  // A replica is lost when nothing was heard from it for this long: four heartbeats.
  Duration dead_after = std::chrono::seconds(1);
  // A phase is slow if it exceeds three usual lengths and this.
  Duration soft_floor = std::chrono::milliseconds(500);
  // A phase hangs if it exceeds ten usual lengths and the floor. The first floor applies to the
  // first five computations of an incarnation, to every other activity until one such phase has
  // ended, and to what the program does on its own between steps, such as an evaluation.
  Duration hard_floor = std::chrono::seconds(5);
  Duration first_floor = std::chrono::seconds(60);
};

struct Finding {
  enum class Kind {
    kSilent,  // The replica is lost.
    kHung,    // It counts as lost until its serial changes.
    kSlow,    // Only displayed.
  };
  Kind kind = Kind::kSilent;
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::string reason;
  // Only for kHung, if links are to blame.
  std::vector<DeadLink> links{};
};

class FailureDetector {
 public:
  // What was found of a replica's current phase.
  struct Liveness {
    bool hung = false;  // It has made no progress since.
    bool slow = false;
  };

  explicit FailureDetector(const FailureDetectorOptions& options)
      : options_(options) {}

  void received(const Report& report, Instant now);
  // These have made a step together. Those of them that follow have computed nothing.
  void committed(const std::vector<Member>& participants);
  // This incarnation is no longer monitored.
  void ended(ReplicaId replica, Incarnation incarnation);

  // Returns the findings since the last call: each phase is found slow once and hung once, unless
  // it is to be found again. A silent incarnation is forgotten.
  std::vector<Finding> tick(Instant now);
  // Nobody could act on the finding that the replica hangs, or what was done about it is forgotten.
  // While it still hangs, the next tick finds it again.
  void find_hang_again(ReplicaId replica, Incarnation incarnation);
  // The same for all replicas.
  void find_hangs_again();

  // All is well with an incarnation that is not monitored.
  Liveness liveness(ReplicaId replica, Incarnation incarnation) const;
  // The activity of its ranks; empty if it is not monitored or does not report them.
  std::vector<RankActivity> ranks(
      ReplicaId replica, Incarnation incarnation, Instant now) const;

 private:
  using Life = std::pair<ReplicaId, Incarnation>;
  static constexpr auto kActivities =
      static_cast<std::size_t>(Activity::kOtherWork) + 1;
  struct MonitoredRank {
    TrainingProgress progress;
    Instant since{};  // When the activity and serial last changed.
  };
  struct MonitoredReplica {
    TrainingProgress progress;
    std::vector<MonitoredRank> ranks;
    Instant heard_at{};
    Instant since{};  // When the serial last changed.
    std::array<std::optional<double>, kActivities> usual_s;  // Moving averages.
    // How many phases were seen to end.
    std::array<int, kActivities> ended{};
    // The steps with its samples. Short computations are rarely seen in a report.
    int steps_computed = 0;
    std::optional<StateId> held;
    Liveness liveness;
  };

  std::optional<double> usual_s(const MonitoredReplica& watched) const;
  void end_phase(MonitoredReplica& watched, Activity next, Instant now);
  bool is_first(const MonitoredReplica& watched) const;
  Duration hard_limit(const MonitoredReplica& watched) const;
  bool over_hard_limit(const MonitoredReplica& watched, Instant now) const;
  // How long an agent of one of its ranks has been silent; 0 if none is.
  Duration quiet(const MonitoredReplica& watched) const;
  bool hangs(const MonitoredReplica& watched, Instant now) const;
  struct HangCulprit {
    Life life;
    std::vector<DeadLink> links;
  };
  // The replicas on the chains that were followed in this tick, each with the replica where its
  // chain begins.
  using SeenLives = std::map<Life, Life>;
  // The end of the chain of waiting replicas that begins at `life`, if that replica is over its
  // hard limit.
  std::optional<HangCulprit> culprit(
      const Life& life, Instant now, SeenLives& seen) const;
  // The dead links among these.
  std::vector<DeadLink> dead_links_of(
      const std::vector<Life>& lives, Instant now) const;
  ReplicaActivity view(const Life& life, Instant now) const;
  // A sentence that says who waits for it, and where.
  std::string report_of(const Life& life, Instant now);
  std::string why_hung(const HangCulprit& blame, Instant now);
  // The newest monitored incarnation of the replica; null if there is none.
  const Life* life_of(std::optional<ReplicaId> replica) const;
  void find_silent(Instant now, std::vector<Finding>& found);
  void find_hung(Instant now, std::vector<Finding>& found);
  void find_slow(Instant now, std::vector<Finding>& found);

  FailureDetectorOptions options_;
  std::map<Life, MonitoredReplica> watched_;
  std::map<ReplicaId, Life> newest_;
  // What all replicas do; filled in a tick that has findings.
  std::vector<ReplicaActivity> all_;
  int explained_ = 0;  // How many findings of this tick have a sentence.
};

}  // namespace sherd::ft
