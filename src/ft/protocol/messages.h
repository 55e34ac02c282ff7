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
  bool operator==(const Suspicion&) const = default;
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

// What the training threads of a replica do. It moves when they do, not when the
// thread that reports does.
struct Progress {
  Activity activity = Activity::kIdle;
  std::uint64_t serial = 0;
  std::optional<ReplicaId> waits_for;
  bool operator==(const Progress&) const = default;
};

// From a replica.
struct Report {
  std::uint64_t run = 0;  // Whose coordinator it has heard; 0: none yet.
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::uint64_t config = 0;     // Hash of what replicas must have in common.
  std::optional<StateId> held;  // None: what it has is damaged.
  Epoch joined;                 // It is connected to the members of this one.
  std::optional<Vote> vote;
  std::optional<Suspicion> suspicion;
  bool leaving = false;                // After the step it is in.
  bool finished = false;               // Its program makes no more steps.
  std::vector<RankAddress> addresses;  // By rank of the replica.
  Progress progress;
  bool operator==(const Report&) const = default;
};

struct Member {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  // Of the step to make. None: it follows, with zeros.
  std::vector<SampleRange> samples;
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

enum class Stage {
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
struct Peer {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::optional<StateId> held;
  std::vector<RankAddress> addresses;
  bool operator==(const Peer&) const = default;
};

// From the coordinator, to one replica. Later ones are higher in (term, epoch,
// step of canonical, stage, planned epoch).
struct Order {
  std::uint64_t run = 0;
  std::uint64_t term = 0;
  // The last committed state; its `held` decides what a replica lacks.
  StateId canonical;
  // That led there, oldest first; the last made it. None after a rollback.
  std::vector<Commit> recent;
  Epoch epoch;
  Stage stage = Stage::kClosed;
  std::vector<Member> members;  // In ring order.
  std::optional<PlannedEpoch> planned;
  std::vector<Peer> peers;
  // To the replica: it does not count any more, and why.
  std::string fenced;
  bool operator==(const Order&) const = default;
};

// ---- the log: in order, each on the disk before anybody is told ----

// A coordinator has started. The first one draws the run.
struct TermRecord {
  std::uint64_t term = 0;
  std::uint64_t run = 0;
  bool operator==(const TermRecord&) const = default;
};

// A replica has started; its lives before do not count any more.
struct LifeRecord {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  bool operator==(const LifeRecord&) const = default;
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
    variant<TermRecord, LifeRecord, EpochRecord, CommitRecord, RollbackRecord>;

}  // namespace sherd::ft
