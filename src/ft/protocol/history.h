// SPDX-License-Identifier: Apache-2.0
//
// What a coordinator knows from its log: the fold of the records. Thread rule:
// values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>
#include "ft/protocol/messages.h"
#include "ft/protocol/samples.h"

namespace sherd::ft {

// The lives of one replica.
struct Incarnations {
  Incarnation current = 0;
  std::set<Incarnation> former;
  bool operator==(const Incarnations&) const = default;
};

struct History {
  std::uint64_t term = 0;  // 0: the log is empty.
  std::uint64_t run = 0;
  std::uint64_t config = 0;  // Known, as the rest, from the first epoch on.
  std::map<ReplicaId, Incarnations> lives;
  Epoch epoch;
  std::optional<StateId> canonical;
  std::vector<Member> members;  // With the samples of the step to come.
  SampleSet consumed;           // By canonical and what it was made from.
  // All that was committed and not rolled back, oldest first; the last is
  // canonical. About 100 bytes a step.
  struct CommittedState {
    StateId state;
    std::optional<Commit> commit;      // That made it; none: the first.
    std::vector<SampleRange> samples;  // That it took, merged.
    bool operator==(const CommittedState&) const = default;
  };
  std::vector<CommittedState> past;
  std::map<StateId, CommittedState> lost;  // What was rolled back.

  // Whether it is canonical, or canonical was made from it.
  bool on_chain(const StateId& state) const;
  // Whether it was ever committed.
  bool knows(const StateId& state) const;
  // Of what is canonical; none: nothing was committed yet.
  const std::optional<Commit>& commit() const;
  // The last commits that led to canonical, oldest first.
  std::vector<Commit> recent(std::size_t count) const;

  bool operator==(const History&) const = default;
};

// Throws Error naming the record for one that cannot follow: a term or an epoch
// that is not higher, a commit of another epoch, or not of the canonical state, or
// with samples that were trained already.
void append(History& history, const Record& record);

}  // namespace sherd::ft
