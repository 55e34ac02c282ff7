// SPDX-License-Identifier: Apache-2.0
//
// History is the state that the records of the coordinator's log add up to. A coordinator that is
// started again knows nothing else. Thread rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>
#include "ft/protocol/messages.h"
#include "ft/protocol/samples.h"

namespace sherd::ft {

// The starts of one replica.
struct Incarnations {
  Incarnation current = 0;
  std::set<Incarnation> former;
  bool operator==(const Incarnations&) const = default;
};

struct History {
  std::uint64_t term = 0;  // 0: the log is empty.
  std::uint64_t run = 0;
  std::uint64_t config = 0;  // This and the rest: from the first epoch on.
  std::map<ReplicaId, Incarnations> lives;
  Epoch epoch;
  std::optional<StateId> canonical;
  std::vector<Member> members;  // With the samples of the step to come.
  SampleSet consumed;           // By all steps that led to canonical.
  // The committed states that were not rolled back, oldest first; the last one is canonical. A step
  // takes about 200 bytes.
  struct CommittedState {
    StateId state;
    std::optional<Commit> commit;      // None: the initial state.
    std::vector<SampleRange> samples;  // Those of the step, merged.
    bool operator==(const CommittedState&) const = default;
  };
  std::vector<CommittedState> past;
  // The samples of the states before these, which are forgotten: see trim().
  SampleSet before_past;
  std::map<StateId, CommittedState> lost;  // What was rolled back.

  // Whether the state is canonical, or canonical was made from it.
  bool on_chain(const StateId& state) const;
  // Whether the state was ever committed.
  bool knows(const StateId& state) const;
  // Whether a rollback to it can be made: what led there is known, too.
  bool can_go_to(const StateId& state) const;
  // The commit that made canonical; none: nothing was committed yet.
  const std::optional<Commit>& commit() const;
  // The last commits that led to canonical, oldest first.
  std::vector<Commit> recent(std::size_t count) const;

  bool operator==(const History&) const = default;
};

// The states that a history knows at least, of all that led to canonical: a replica that has loaded
// an older checkpoint is taken for one that is behind, but no run can go back that far.
inline constexpr std::size_t kPastMin = std::size_t{1} << 16U;

// Forgets the oldest states but `past_min`, and those rolled back that led on from them.
void trim(History& history, std::size_t past_min = kPastMin);

// Throws Error, naming the record, for one that cannot follow: a term or an epoch that is not
// higher; a commit of another epoch, on another state than canonical, or with samples that were
// already trained. Trims the history when it has twice as many states as it must know.
void append(History& history, const Record& record);

}  // namespace sherd::ft
