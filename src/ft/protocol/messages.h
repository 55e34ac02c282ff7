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
  Epoch epoch;  // In which it was noticed.
  ReplicaId accused = 0;
  std::string reason;
  bool operator==(const Suspicion&) const = default;
};

// From a replica.
struct Report {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::optional<StateId> held;  // None: what it has is damaged.
  // The members of this epoch can reach it, and it reduces under no older one.
  Epoch joined;
  std::optional<Vote> vote;
  std::optional<Suspicion> suspicion;
  bool leaving = false;  // After the step it is in.
  bool operator==(const Report&) const = default;
};

struct Member {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::vector<SampleRange> samples;  // Of the step to make.
  bool operator==(const Member&) const = default;
};

struct Commit {
  Attempt attempt;
  StateId base;
  StateId result;
  bool operator==(const Commit&) const = default;
};

enum class Stage {
  kJoining,  // Members connect to each other.
  kRunning,  // All have: they may reduce.
  kClosed,   // Nothing of it is committed any more; the next one is to come.
};

// From the coordinator, to one replica. Later ones are higher in (term, epoch,
// step of canonical, stage).
struct Order {
  std::uint64_t term = 0;
  // The last committed state; its `held` decides what a replica lacks.
  StateId canonical;
  std::optional<Commit> commit;  // That made it.
  Epoch epoch;
  Stage stage = Stage::kClosed;
  std::vector<Member> members;  // In ring order.
  // To the replica: who speaks here is not it any more, and why.
  std::string fenced;
  bool operator==(const Order&) const = default;
};

// ---- the log: in order, each on the disk before anybody is told ----

struct TermRecord {
  std::uint64_t term = 0;
  bool operator==(const TermRecord&) const = default;
};

// No attempt of an older epoch is committed any more.
struct EpochRecord {
  Epoch epoch;
  StateId base;
  std::vector<Member> members;
  bool operator==(const EpochRecord&) const = default;
};

struct CommitRecord {
  Commit commit;
  std::vector<Participant> participants;
  std::uint64_t gradients = 0;
  std::vector<Member> next;  // With the samples of the step after it.
  bool operator==(const CommitRecord&) const = default;
};

// All who held what was committed last are gone for good.
struct RollbackRecord {
  StateId lost;
  StateId canonical;
  bool operator==(const RollbackRecord&) const = default;
};

using Record =
    std::variant<TermRecord, EpochRecord, CommitRecord, RollbackRecord>;

}  // namespace sherd::ft
