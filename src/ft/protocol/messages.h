// SPDX-License-Identifier: Apache-2.0
//
// The messages between replicas and the coordinator, and the records of the coordinator's log.
// There is one message each way, a replica's Report and the coordinator's RunView, and each carries
// all that its sender knows: a lost, repeated or late one is harmless, since the next one says the
// same. docs/design/fault_tolerance.md has the protocol. Thread rule: values.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>
#include "ft/protocol/identity.h"
#include "ft/protocol/samples.h"

namespace sherd::ft {

// A reduction that is complete and undecided. The replica has the sum and still its own gradients,
// and applies nothing until it hears what became of the attempt.
struct Vote {
  Attempt attempt;
  StateId base;
  std::uint64_t gradients = 0;  // Digest of the sum, over all shards.
  bool operator==(const Vote&) const = default;
};

struct Suspicion {
  Epoch epoch;  // Nothing is reduced in it any more.
  ReplicaId accused = 0;
  std::string reason;
  // The other end of the suspected link, if it is known who noticed the fault first.
  std::optional<ReplicaId> noticed_by{};
  bool operator==(const Suspicion&) const = default;
};

// A digest of the parameters, which must be equal on most replicas that hold the state.
struct StateDigest {
  StateId state;
  std::uint64_t digest = 0;  // Covers all shards.
  // The state was copied from another replica since the last digest, so that this one says nothing
  // about whose bits are right.
  bool copied = false;
  bool operator==(const StateDigest&) const = default;
};

struct GradientFault {
  std::string reason;
  // Training shall end; otherwise the gradients are left out.
  bool stop = false;
  bool operator==(const GradientFault&) const = default;
};

// Gradients that are not finite or far too large. They enter no reduction and no vote.
struct BadGradients {
  StateId base;
  std::vector<SampleRange> samples;
  GradientFault fault;
  bool operator==(const BadGradients&) const = default;
};

// Where the counterparts of one rank reach it.
struct RankAddress {
  std::string host;
  std::uint16_t reduce_port = 0;  // For the all-reduce across replicas.
  std::uint16_t fetch_port = 0;   // For replicas that catch up.
  RingKey key{};                  // Asked for at the first port.
  bool operator==(const RankAddress&) const = default;
};

// The addresses of a replica's ranks, by rank. They are many and the same in all that is said of an
// incarnation, so that copies share them; and ranks of one host differ in their ports alone, so that
// who knows a thousand replicas has one name and key for each host.
class RankAddresses {
 public:
  struct Ports {
    std::uint16_t reduce = 0;
    std::uint16_t fetch = 0;
    bool operator==(const Ports&) const = default;
  };
  // Ranks one after another that are reached at the same host with the same key.
  struct HostRanks {
    std::string host;
    RingKey key;
    std::vector<Ports> ports;
    bool operator==(const HostRanks&) const = default;
  };

  RankAddresses() = default;
  RankAddresses(const std::vector<RankAddress>& all);
  RankAddresses(std::initializer_list<RankAddress> all)
      : RankAddresses(std::vector<RankAddress>(all)) {}
  // Leaves out hosts without ranks. REQUIRES: neighbours differ in host or key.
  explicit RankAddresses(std::vector<HostRanks> hosts);

  const std::vector<HostRanks>& hosts() const;
  bool empty() const { return hosts_ == nullptr; }
  std::size_t size() const;
  // REQUIRES: rank < size().
  RankAddress operator[](std::size_t rank) const;
  RankAddress front() const { return (*this)[0]; }
  bool operator==(const RankAddresses& other) const {
    return hosts_ == other.hosts_ || hosts() == other.hosts();
  }

 private:
  std::shared_ptr<const std::vector<HostRanks>> hosts_;  // Null: none.
};

enum class Activity {
  kIdle,
  kComputing,
  kReducing,
  kWaiting,  // For a decision.
  kApplying,
  kFetching,
};

// A rank's connections with its counterpart in another replica, and the data frames received and sent
// on them in this epoch, modulo 2^32: those that were sent and have not been received show which
// link is dead.
struct RingLink {
  ReplicaId peer = 0;
  std::uint32_t frames_in = 0;
  std::uint32_t frames_out = 0;
  bool operator==(const RingLink&) const = default;
};

// How fast data come from a neighbour: the slowest of the ranks' connections.
struct LinkSpeed {
  ReplicaId peer = 0;
  std::uint64_t bytes_per_s = 0;
  bool operator==(const LinkSpeed&) const = default;
};

// How far a rank is in the reduction with its counterparts.
struct RingPosition {
  Epoch epoch;  // The one it is connected for.
  std::vector<RingLink> links{};
  // The attempt under way.
  std::uint32_t bucket = 0;
  std::string unit{};  // Whose gradients are in the bucket; empty: unknown.
  std::int64_t slices_done = 0;
  std::int64_t slices = 0;
  bool operator==(const RingPosition&) const = default;
};

// The activity of the training threads of a replica or of one of its ranks. It changes when they
// make progress, not when the thread that reports does.
struct TrainingProgress {
  Activity activity = Activity::kIdle;
  std::uint64_t serial = 0;
  std::optional<ReplicaId> waits_for;
  bool to_read = false;  // It waits for a reader, else for bytes.
  // Heartbeats for which the leader has heard nothing of the rank's agent.
  std::uint32_t missed_heartbeats = 0;
  // Only in the progress of a rank.
  std::optional<RingPosition> place{};
  std::uint32_t rank = 0;
  bool operator==(const TrainingProgress&) const = default;
};

struct Commit {
  Attempt attempt;
  StateId base;
  StateId result;
  std::uint64_t gradients = 0;  // Digest of the sum.
  std::int64_t samples = 0;     // How many are in the sum.
  bool operator==(const Commit&) const = default;
};

enum class EpochStage {
  kJoining,  // Members connect to each other.
  kRunning,  // All have: they may reduce.
  kClosed,   // It commits nothing any more; the next one is to come.
};

// An epoch that begins with the next commit, if all its members are connected to each other by
// then. Training goes on meanwhile.
struct PlannedEpoch {
  Epoch epoch;
  std::vector<Member> members;
  bool operator==(const PlannedEpoch&) const = default;
};

// A replica that is connected to the coordinator.
struct LiveReplica {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::optional<StateId> held;
  RankAddresses addresses;
  bool operator==(const LiveReplica&) const = default;
};

// A replica has started; its former incarnations do not count any more.
struct IncarnationRecord {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  bool operator==(const IncarnationRecord&) const = default;
};

// The coordinator tells one replica all that it has decided. Later views are higher in (term,
// epoch, step of canonical, stage, planned epoch).
struct RunView {
  std::uint64_t run = 0;
  std::uint64_t term = 0;
  // The last committed state.
  StateId canonical;
  // The last commits, oldest first; the last one made canonical. None after a
  // rollback.
  std::vector<Commit> recent;
  Epoch epoch;
  EpochStage stage = EpochStage::kClosed;
  std::vector<Member> members;  // In ring order.
  std::optional<PlannedEpoch> planned;
  std::vector<LiveReplica> peers;
  // The digest of the addressed replica, if it differs from most: what the
  // replica holds now was made from wrong bits.
  std::optional<StateDigest> wrong{};
  // Why the addressed replica does not count any more; empty: it counts.
  std::string fenced;
  bool ended = false;  // All steps of the run are made.
  // All replicas that were ever in the run, by number, each in its last life. `starts` counts all
  // lives, so that of two views of a term the one with more starts knows them better.
  std::uint64_t starts = 0;
  std::vector<IncarnationRecord> lives{};
  SampleSet consumed{};  // By all steps that led to canonical.
  // The coordinator's log is empty, and it asks what the replica remembers. The rest says nothing.
  bool asks = false;
  bool operator==(const RunView&) const = default;
};

// What makes a view later than another one, but for its plan.
inline auto age_of(const RunView& view) {
  return std::make_tuple(
      view.term, view.epoch, view.canonical.step, view.stage);
}

// A replica tells the coordinator all that it knows.
struct Report {
  std::uint64_t run = 0;  // 0: it has heard no coordinator yet.
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::uint64_t serial = 0;     // Counts the reports of the incarnation.
  std::uint64_t config = 0;     // Hash of what replicas must have in common.
  std::optional<StateId> held;  // None: what it has is damaged.
  Epoch joined;                 // It is connected to this epoch's members.
  std::optional<Vote> vote;
  std::optional<Suspicion> suspicion;
  std::optional<StateDigest> digest{};  // The last one made.
  std::optional<BadGradients> bad_gradients{};
  bool leaving = false;   // It leaves after the step it is in.
  bool finished = false;  // Its program makes no more steps.
  RankAddresses addresses;
  TrainingProgress progress;
  // All ranks, or of many those that matter to who looks for a hang, ascending.
  std::vector<TrainingProgress> ranks{};
  // Its last view, for a coordinator that asks. Without what is of no use any more: who is there,
  // what is planned, why it is fenced.
  std::optional<RunView> remembers{};
  // Those of its links in the epoch whose speed is known.
  std::vector<LinkSpeed> link_speeds{};
  bool operator==(const Report&) const = default;
};

// ---- the records of the log, each on the disk before a view tells of it ----

// A coordinator has started. The first one draws the number of the run.
struct TermRecord {
  std::uint64_t term = 0;
  std::uint64_t run = 0;
  bool operator==(const TermRecord&) const = default;
};

// An epoch has begun: no attempt of an older one is committed any more.
struct EpochRecord {
  Epoch epoch;
  StateId base;
  std::uint64_t config = 0;
  std::vector<Member> members;
  bool operator==(const EpochRecord&) const = default;
};

struct CommitRecord {
  Commit commit;
  std::vector<Member> participants;
  std::vector<Member> next;  // The members, with their next samples.
  bool operator==(const CommitRecord&) const = default;
};

// All holders of the last committed state are gone for good: the run goes back to another state
// that was committed once. The epoch ends.
struct RollbackRecord {
  Epoch epoch;
  StateId lost;
  StateId canonical;
  bool operator==(const RollbackRecord&) const = default;
};

// The log was lost, and goes on from what all replicas of the run remember. It follows a term above
// all of the lost log; no epoch is before it.
struct RecoveryRecord {
  std::uint64_t config = 0;
  Epoch epoch;                  // The last one.
  std::vector<Member> members;  // Of it, or none.
  // All replicas of the run, each in its last life that is remembered.
  std::vector<IncarnationRecord> lives;
  StateId first;                // The oldest state that is known.
  std::vector<Commit> commits;  // That led on from it, oldest first.
  // States that replicas hold, or have loaded, and that did not lead to the last one.
  std::vector<StateId> given_up;
  SampleSet consumed;  // By all steps that led to the last one.
  const StateId& canonical() const {
    return commits.empty() ? first : commits.back().result;
  }
  bool operator==(const RecoveryRecord&) const = default;
};

using Record = std::variant<
    TermRecord,
    IncarnationRecord,
    EpochRecord,
    CommitRecord,
    RollbackRecord,
    RecoveryRecord>;

}  // namespace sherd::ft
