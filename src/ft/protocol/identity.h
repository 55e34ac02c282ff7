// SPDX-License-Identifier: Apache-2.0
//
// What the fault-tolerant protocol calls the same. A step number alone never
// says that two replicas have the same state: a StateId does, and equal ones
// mean equal bits of parameters, optimizer and data position. Thread rule: values
// and pure functions.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace sherd::ft {

// A replica's name, numbered by who speaks for it: K processes that hold one
// complete model together.
using ReplicaId = std::uint32_t;

// One life of a replica: drawn when its processes start. Of two lives of one
// replica the one that the coordinator heard of later is the only one that counts.
using Incarnation = std::uint64_t;

// One list of members, in one order. Terms count the coordinator's lives, so that
// what a former one still says is older.
struct Epoch {
  std::uint64_t term = 0;
  std::uint64_t number = 0;
  auto operator<=>(const Epoch&) const = default;
};

// One try of a step. It is committed at most once, and never when a later epoch
// has begun first.
struct Attempt {
  Epoch epoch;
  std::int64_t step = 0;  // That it would make.
  auto operator<=>(const Attempt&) const = default;
};

// 128 bits of everything a state was made from.
struct Lineage {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const Lineage&) const = default;
};

struct StateId {
  std::int64_t step = 0;  // Steps committed; 0: the first values.
  Lineage lineage;
  auto operator<=>(const StateId&) const = default;
};

// Samples [begin, end) of the run's order, which is endless.
struct SampleRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  auto operator<=>(const SampleRange&) const = default;
};

// Whose gradients are in a step.
struct Participant {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::vector<SampleRange> samples;
  // Taken, but not in the sum: their gradients were bad.
  std::vector<SampleRange> left_out{};
  auto operator<=>(const Participant&) const = default;
};

// Of the values that training begins with.
Lineage first_lineage(std::uint64_t config, std::uint64_t parameters);

// Of what `attempt` makes of `base`. `participants` in ring order; `gradients` is
// the digest of their sum.
Lineage next_lineage(
    const Lineage& base,
    const Attempt& attempt,
    const std::vector<Participant>& participants,
    std::uint64_t gradients);

// For messages: "replica 2", "epoch 2.7", "step 12 (5f0c...)", "step 12 of
// epoch 2.7".
std::string name_of(ReplicaId replica);
std::string text_of(const Epoch& epoch);
std::string text_of(const StateId& state);
std::string text_of(const Attempt& attempt);

}  // namespace sherd::ft
