// SPDX-License-Identifier: Apache-2.0
//
// The messages between replicas and the coordinator, and the records of the coordinator's log.
// There is one message in each direction, a replica's Report and the coordinator's RunView, and
// each carries everything its sender knows. A lost, repeated or late message is therefore harmless:
// the next one says the same. docs/design/fault_tolerance.md describes the protocol. Thread rule:
// values.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>
#include "ft/protocol/identity.h"
#include "ft/protocol/samples.h"

namespace sherd::ft {

// A reduction that is complete but undecided. The replica keeps both the sum and its own gradients,
// and applies nothing until it learns the outcome of the attempt.
struct Vote {
  Attempt attempt;
  StateId base;
  std::uint64_t gradients = 0;  // Digest of the sum, over all shards.
  bool operator==(const Vote&) const = default;
};

struct Suspicion {
  Epoch epoch;  // Nothing is reduced in this epoch any more.
  ReplicaId accused = 0;
  std::string reason;
  // The other end of the suspected link, if it is known to have noticed the fault first.
  std::optional<ReplicaId> noticed_by{};
  bool operator==(const Suspicion&) const = default;
};

// A digest of the parameters, which must be equal on most replicas that hold the state.
struct StateDigest {
  StateId state;
  std::uint64_t digest = 0;  // Covers all shards.
  // The state was copied from another replica since the last digest, so this digest says nothing
  // about whose bits are right.
  bool copied = false;
  bool operator==(const StateDigest&) const = default;
};

struct GradientFault {
  std::string reason;
  // True if training shall stop; otherwise the gradients are left out.
  bool stop = false;
  bool operator==(const GradientFault&) const = default;
};

// Gradients that are not finite or far too large. They take part in no reduction and no vote.
struct BadGradients {
  StateId base;
  std::vector<SampleRange> samples;
  GradientFault fault;
  bool operator==(const BadGradients&) const = default;
};

// The address at which one rank's counterparts reach it.
struct RankAddress {
  std::string host;
  std::uint16_t reduce_port = 0;  // For the all-reduce across replicas.
  std::uint16_t fetch_port = 0;   // For replicas that are catching up.
  RingKey key{};                  // Required at the reduce port.
  bool operator==(const RankAddress&) const = default;
};

// The addresses of a replica's ranks, by rank. They are many, and the same in every message about
// an incarnation, so copies share them. Ranks of one host differ only in their ports, so a process
// that knows a thousand replicas keeps one host name and key per host.
class RankAddresses {
 public:
  struct Ports {
    std::uint16_t reduce = 0;
    std::uint16_t fetch = 0;
    bool operator==(const Ports&) const = default;
  };
  // Consecutive ranks that are reached at the same host with the same key.
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
  // Null if there are no addresses.
  std::shared_ptr<const std::vector<HostRanks>> hosts_;
};

enum class Activity {
  kIdle,
  kComputing,
  kReducing,
  kWaiting,  // It waits for a decision.
  kApplying,
  kFetching,
  kOtherWork,  // Not part of a step, such as an evaluation or a copy of its state.
};

// A rank's connections with its counterpart in another replica, and how many data frames were
// received and sent on them in this epoch, modulo 2^32. Frames that were sent but not received show
// which link is dead.
struct RingLink {
  ReplicaId peer = 0;
  std::uint32_t frames_in = 0;
  std::uint32_t frames_out = 0;
  bool operator==(const RingLink&) const = default;
};

// How fast data arrive from a neighbour, as the lowest speed over all ranks' connections.
struct LinkSpeed {
  ReplicaId peer = 0;
  std::uint64_t bytes_per_s = 0;
  bool operator==(const LinkSpeed&) const = default;
};

// How far a rank is in the reduction with its counterparts.
struct RingPosition {
  Epoch epoch;  // The epoch it is connected for.
  std::vector<RingLink> links{};
  // The attempt under way.
  std::uint32_t bucket = 0;
  // The unit whose gradients are in the bucket; empty if unknown.
  std::string unit{};
  std::int64_t slices_done = 0;
  std::int64_t slices = 0;
  bool operator==(const RingPosition&) const = default;
};

// The activity of the training threads of a replica or of one of its ranks. It changes when those
// threads make progress, even though another thread reports it.
struct TrainingProgress {
  Activity activity = Activity::kIdle;
  std::uint64_t serial = 0;
  std::optional<ReplicaId> waits_for;
  // True if the rank waits for a reader, false if it waits for bytes.
  bool to_read = false;
  // For how many heartbeats the leader has heard nothing from the rank's agent.
  std::uint32_t missed_heartbeats = 0;
  // Only set in the progress of a single rank.
  std::optional<RingPosition> place{};
  std::uint32_t rank = 0;
  bool operator==(const TrainingProgress&) const = default;
};

// Whether the threads have made progress in between. The serial also goes back when a reduction is
// given up, which is none.
bool has_moved(const TrainingProgress& before, const TrainingProgress& after);

struct Commit {
  Attempt attempt;
  StateId base;
  StateId result;
  std::uint64_t gradients = 0;  // The digest of the sum.
  std::int64_t samples = 0;     // How many samples are in the sum.
  bool operator==(const Commit&) const = default;
};

enum class EpochStage {
  kJoining,  // The members connect to each other.
  kRunning,  // All members are connected and may reduce.
  kClosed,   // It commits nothing any more; the next epoch follows.
};

struct EpochMembers {
  Epoch epoch;
  std::vector<Member> members;
  bool operator==(const EpochMembers&) const = default;
};

// A replica that is connected to the coordinator.
struct LiveReplica {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::optional<StateId> held;
  RankAddresses addresses;
  bool operator==(const LiveReplica&) const = default;
};

// A replica has started; its former incarnations no longer count.
struct IncarnationRecord {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  bool operator==(const IncarnationRecord&) const = default;
};

// What the coordinator sends to one replica: everything it has decided. Later views are higher in
// (term, epoch, step of canonical, stage, planned epoch).
struct RunView {
  std::uint64_t run = 0;
  std::uint64_t term = 0;
  // The last committed state.
  StateId canonical;
  // The last commits, oldest first; the last one made canonical. Empty after a rollback.
  std::vector<Commit> recent;
  Epoch epoch;
  EpochStage stage = EpochStage::kClosed;
  std::vector<Member> members;  // In ring order.
  // An epoch that begins with the next commit, if all its members are connected to each other by
  // then. Training goes on meanwhile.
  std::optional<EpochMembers> planned;
  std::vector<LiveReplica> peers;
  // The digest of the addressed replica, if it differs from most: the replica's current state was
  // made from wrong bits.
  std::optional<StateDigest> wrong{};
  // Why the addressed replica no longer counts; empty if it does.
  std::string fenced;
  bool ended = false;  // All steps of the run are done.
  // All replicas that were ever in the run, by number, each with its last incarnation. `starts`
  // counts all incarnations, so of two views of one term the one with more starts is the more
  // complete.
  std::uint64_t starts = 0;
  std::vector<IncarnationRecord> lives{};
  SampleSet consumed{};  // Consumed by all steps that led to canonical.
  // True if the coordinator's log is empty and it asks what the replica remembers. The other fields
  // are then meaningless.
  bool asks = false;
  bool operator==(const RunView&) const = default;
};

// What makes a view later than another one, apart from its plan.
inline auto age_of(const RunView& view) {
  return std::make_tuple(
      view.term, view.epoch, view.canonical.step, view.stage);
}

// How RunView::fenced begins for reasons that starting the replica again does not mend.
inline constexpr std::string_view kOtherConfiguration =
    "expected the configuration ";
inline constexpr std::string_view kOtherCheckpoint =
    "expected a checkpoint of this run, or none, ";
inline constexpr std::string_view kOtherLog = "expected the log of the run ";
inline constexpr std::string_view kNumberTooHigh = "expected a replica below ";
inline constexpr std::string_view kNumberOnTwoHosts = "expected SHERD_REPLICA ";
// How it continues after the last step, if the coordinator has told others that the run has ended.
inline constexpr std::string_view kEndIsLost =
    ", but each replica that had it has failed since; ";

// Whether RunView::fenced has one of them: somebody has to change the replica's options or files,
// or start the whole job again, first.
bool is_final_refusal(std::string_view fenced);

// What a replica sends to the coordinator: everything it knows.
struct Report {
  std::uint64_t run = 0;  // 0 if it has not heard from a coordinator yet.
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::uint64_t serial = 0;  // Counts the reports of the incarnation.
  // A hash of what all replicas must have in common. Never 0.
  std::uint64_t config = 0;
  std::optional<StateId> held;  // Nullopt if its state is damaged.
  Epoch joined;                 // The epoch whose members it is connected to.
  std::optional<Vote> vote;
  std::optional<Suspicion> suspicion;
  std::optional<StateDigest> digest{};  // The digest made last.
  std::optional<BadGradients> bad_gradients{};
  bool leaving = false;   // It leaves after the current step.
  bool finished = false;  // Its program makes no further steps.
  RankAddresses addresses;
  TrainingProgress progress;
  // The progress of all ranks, ascending by rank; in a large replica only of those that matter for
  // finding a hang.
  std::vector<TrainingProgress> ranks{};
  // The replica's last view, for a coordinator that asks for it. It leaves out what is no longer of
  // use: who is there, what is planned, and why the replica is fenced.
  std::optional<RunView> remembers{};
  // The speeds of those of its links in the epoch for which one is known.
  std::vector<LinkSpeed> link_speeds{};
  bool operator==(const Report&) const = default;
};

// ---- the records of the log; each is on disk before any view mentions it ----

// A coordinator has started. The first one draws the run number.
struct TermRecord {
  std::uint64_t term = 0;
  std::uint64_t run = 0;
  bool operator==(const TermRecord&) const = default;
};

// An epoch has begun: no attempt of an older epoch is committed any more.
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
  // The members, with their samples of the next step.
  std::vector<Member> next;
  bool operator==(const CommitRecord&) const = default;
};
// The state that the commit's attempt makes from its base.
StateId result_of(const CommitRecord& record);

// All holders of the last committed state are gone for good, so the run goes back to an earlier
// committed state. The epoch ends.
struct RollbackRecord {
  Epoch epoch;
  StateId lost;
  StateId canonical;
  bool operator==(const RollbackRecord&) const = default;
};

// The log was lost, and the run continues from what all its replicas remember. The record follows a
// term above all terms of the lost log, and no epoch precedes it.
struct RecoveryRecord {
  std::uint64_t config = 0;
  Epoch epoch;                  // The last epoch.
  std::vector<Member> members;  // The members of that epoch, or none.
  // All replicas of the run, each with the last incarnation that is remembered.
  std::vector<IncarnationRecord> lives;
  StateId first;                // The oldest known state.
  std::vector<Commit> commits;  // The commits that followed it, oldest first.
  // States that replicas hold or have loaded, but that did not lead to the last state.
  std::vector<StateId> given_up;
  SampleSet consumed;  // Consumed by all steps that led to the last state.
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
