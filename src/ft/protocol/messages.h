// SPDX-License-Identifier: Apache-2.0
//
// What replicas and the coordinator tell each other, and what the coordinator's
// log keeps. There is one message each way, and each says all that its sender
// knows: a lost, repeated or late one is harmless, since the next one says the
// same. docs/design/fault_tolerance.md has the protocol. Thread rule: values.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>
#include "ft/protocol/identity.h"

namespace sherd::ft {

// A reduction that is complete and undecided: the replica has the sum, and its
// own gradients still, and applies nothing until it hears what became of it.
struct Vote {
  Attempt attempt;
  StateId base;
  std::uint64_t gradients = 0;  // Digest of the sum, over all shards.
  bool operator==(const Vote&) const = default;
};

struct Suspicion {
  Epoch epoch;  // In which it was noticed; nothing is reduced in it any more.
  ReplicaId accused = 0;
  std::string reason;
  // Who noticed it first, as far as was heard: the other end of the link.
  std::optional<ReplicaId> noticed_by{};
  bool operator==(const Suspicion&) const = default;
};

// What most replicas must have in common with it.
struct StateDigest {
  StateId state;
  std::uint64_t digest = 0;  // Of its parameters, over all shards.
  // It was copied from another replica since its last digest: it says nothing
  // about whose bits are right.
  bool copied = false;
  bool operator==(const StateDigest&) const = default;
};

struct GradientFault {
  std::string reason;
  // All training shall end; else the gradients are left out.
  bool stop = false;
  bool operator==(const GradientFault&) const = default;
};

// Gradients that are of no use: not finite, or far too large. They are in no
// reduction, nor in a vote.
struct BadGradients {
  StateId base;
  std::vector<SampleRange> samples;
  GradientFault fault;
  bool operator==(const BadGradients&) const = default;
};

// Where one process of a replica is reached by its counterparts.
struct RankAddress {
  std::string host;
  std::uint16_t reduce_port = 0;  // Of the all-reduce across replicas.
  std::uint16_t fetch_port = 0;   // Of those that catch up.
  bool operator==(const RankAddress&) const = default;
};

enum class Activity {
  kIdle,
  kComputing,
  kReducing,
  kWaiting,  // For a decision.
  kApplying,
  kFetching,
};

// Where a rank is in the reduction with its counterparts.
struct RingPosition {
  Epoch epoch;  // That it is connected for.
  ReplicaId previous = 0;
  ReplicaId next = 0;
  // Frames that have come and gone in it: those that went and have not come say
  // which link is dead.
  std::uint64_t frames_in = 0;
  std::uint64_t frames_out = 0;
  // Of the attempt under way.
  std::uint32_t bucket = 0;
  std::string unit{};  // What the bucket is of; empty: it has no name.
  std::int64_t slices_done = 0;
  std::int64_t slices = 0;
  bool operator==(const RingPosition&) const = default;
};

// What the training threads of a replica, or of one of its ranks, do. It moves
// when they do, not when the thread that reports does.
struct TrainingProgress {
  Activity activity = Activity::kIdle;
  std::uint64_t serial = 0;
  std::optional<ReplicaId> waits_for;
  bool to_read = false;  // It waits for its reading, else for its bytes.
  // Beats in which the agent of the rank has told its leader nothing.
  std::uint32_t missed_heartbeats = 0;
  std::optional<RingPosition> place{};  // Of a rank.
  bool operator==(const TrainingProgress&) const = default;
};

// From a replica.
struct Report {
  std::uint64_t run = 0;  // Whose coordinator it has heard; 0: none yet.
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::uint64_t serial = 0;     // Of this life's reports. Lower: overtaken.
  std::uint64_t config = 0;     // Hash of what replicas must have in common.
  std::optional<StateId> held;  // None: what it has is damaged.
  Epoch joined;                 // It is connected to the members of this one.
  std::optional<Vote> vote;
  std::optional<Suspicion> suspicion;
  std::optional<StateDigest> digest{};  // The last one it has made.
  std::optional<BadGradients> bad_gradients{};
  bool leaving = false;                // After the step it is in.
  bool finished = false;               // Its program makes no more steps.
  std::vector<RankAddress> addresses;  // By rank of the replica.
  TrainingProgress progress;
  std::vector<TrainingProgress> ranks{};  // The same, by rank.
  bool operator==(const Report&) const = default;
};

struct Member {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  // Of the step to make. None: it follows, with zeros.
  std::vector<SampleRange> samples;
  // Its own that were bad: taken by the step, and not in its sum.
  std::vector<SampleRange> left_out{};
  bool operator==(const Member&) const = default;
};

struct Commit {
  Attempt attempt;
  StateId base;
  StateId result;
  std::uint64_t gradients = 0;  // Digest of the sum.
  std::int64_t samples = 0;     // In it.
  bool operator==(const Commit&) const = default;
};

enum class EpochStage {
  kJoining,  // Members connect to each other.
  kRunning,  // All have: they may reduce.
  kClosed,   // Nothing of it is committed any more; the next one is to come.
};

// An epoch that begins with the next commit, if all its members are connected to
// each other by then. Nobody stops for it.
struct PlannedEpoch {
  Epoch epoch;
  std::vector<Member> members;
  bool operator==(const PlannedEpoch&) const = default;
};

// A replica that is there.
struct LiveReplica {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::optional<StateId> held;
  std::vector<RankAddress> addresses;
  bool operator==(const LiveReplica&) const = default;
};

// From the coordinator, to one replica. Later ones are higher in (term, epoch,
// step of canonical, stage, planned epoch).
struct RunView {
  std::uint64_t run = 0;
  std::uint64_t term = 0;
  // The last committed state; its `held` decides what a replica lacks.
  StateId canonical;
  // That led there, oldest first; the last made it. None after a rollback.
  std::vector<Commit> recent;
  Epoch epoch;
  EpochStage stage = EpochStage::kClosed;
  std::vector<Member> members;  // In ring order.
  std::optional<PlannedEpoch> planned;
  std::vector<LiveReplica> peers;
  // To the replica: its digest, which is not that of most. What it holds now was
  // made from wrong bits.
  std::optional<StateDigest> wrong{};
  // To the replica: it does not count any more, and why.
  std::string fenced;
  bool ended = false;  // Because all steps of the run are made.
  bool operator==(const RunView&) const = default;
};

// ---- the log: in order, each on the disk before anybody is told ----

// A coordinator has started. The first one draws the run.
struct TermRecord {
  std::uint64_t term = 0;
  std::uint64_t run = 0;
  bool operator==(const TermRecord&) const = default;
};

// A replica has started; its lives before do not count any more.
struct IncarnationRecord {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  bool operator==(const IncarnationRecord&) const = default;
};

// No attempt of an older epoch is committed any more.
struct EpochRecord {
  Epoch epoch;
  StateId base;
  std::uint64_t config = 0;
  std::vector<Member> members;
  bool operator==(const EpochRecord&) const = default;
};

struct CommitRecord {
  Commit commit;
  std::vector<Participant> participants;
  std::vector<Member> next;  // With the samples of the step after it.
  bool operator==(const CommitRecord&) const = default;
};

// All who held what was committed last are gone for good. Back to another state
// that was committed once. Ends the epoch.
struct RollbackRecord {
  Epoch epoch;
  StateId lost;
  StateId canonical;
  bool operator==(const RollbackRecord&) const = default;
};

using Record = std::
    variant<TermRecord, IncarnationRecord, EpochRecord, CommitRecord, RollbackRecord>;

}  // namespace sherd::ft
