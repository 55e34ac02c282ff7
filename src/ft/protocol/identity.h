// SPDX-License-Identifier: Apache-2.0
//
// The identities of the fault-tolerant protocol: replicas, epochs, attempts, states and samples. An
// equal step number does not mean that two replicas hold the same state; an equal StateId does:
// their parameters, optimizer state and data position are equal bit by bit. Thread rule: values,
// pure functions.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace sherd::ft {

// The number of a replica, K processes that hold one complete model together.
using ReplicaId = std::uint32_t;
// The numbers are below this.
inline constexpr ReplicaId kReplicasMax = 4096;

// Identifies one start of a replica's processes, which draw it at random. Only the incarnation that
// the coordinator heard of last counts.
using Incarnation = std::uint64_t;

// A secret of an incarnation's ranks and the members of its run: a process that connects to a rank
// proves that it knows the key. It is drawn at random; all zeros mean that there is none.
struct RingKey {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool operator==(const RingKey&) const = default;
};

// One list of members, in one order. A term is one start of the coordinator, so that messages of a
// former coordinator compare as older.
struct Epoch {
  std::uint64_t term = 0;
  std::uint64_t number = 0;
  auto operator<=>(const Epoch&) const = default;
};

// One attempt at a step. It is committed at most once, and never after a later epoch has begun.
struct Attempt {
  Epoch epoch;
  std::int64_t step = 0;
  auto operator<=>(const Attempt&) const = default;
};

// A 128-bit hash of everything that a state was made from.
struct Lineage {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const Lineage&) const = default;
};

struct StateId {
  std::int64_t step = 0;  // 0 for the initial values.
  Lineage lineage;
  auto operator<=>(const StateId&) const = default;
};

// Samples [begin, end) of the run's endless order.
struct SampleRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  auto operator<=>(const SampleRange&) const = default;
};

// A replica in an epoch, with its share of the next step's samples or, in a commit, of the
// committed step's.
struct Member {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  // A member without samples follows: its gradients are zeros.
  std::vector<SampleRange> samples;
  // Samples that the step takes but does not sum, because their gradients were bad.
  std::vector<SampleRange> left_out{};
  auto operator<=>(const Member&) const = default;
};

// The member that is this incarnation of the replica; null if there is none.
const Member* find(
    const std::vector<Member>& members,
    ReplicaId replica,
    Incarnation incarnation);

// The lineage of the values that training begins with.
Lineage first_lineage(std::uint64_t config, std::uint64_t parameters);

// The lineage of the state that `attempt` makes from `base`, given the members in ring order and
// the digest of the sum of their gradients.
Lineage next_lineage(
    const Lineage& base,
    const Attempt& attempt,
    const std::vector<Member>& participants,
    std::uint64_t gradients);

// For messages: "replica 2", "epoch 2.7", "step 12 (5f0c...)", "step 12 of epoch 2.7".
std::string name_of(ReplicaId replica);
std::string text_of(const Epoch& epoch);
std::string text_of(const StateId& state);
std::string text_of(const Attempt& attempt);

// The whole identity as text, for checkpoints: "step 12 of 0123456789abcdef0123456789abcdef".
std::string name_of(const StateId& state);
// The inverse of name_of(). Throws Error for text that name_of() does not write.
StateId state_named(const std::string& name);

}  // namespace sherd::ft
