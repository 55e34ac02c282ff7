// SPDX-License-Identifier: Apache-2.0
//
// History is the state that results from the records of the coordinator's log. A restarted
// coordinator knows nothing else. Thread rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>
#include "ft/protocol/messages.h"
#include "ft/protocol/samples.h"

namespace sherd::ft {

struct History {
  // The starts of one replica.
  struct Incarnations {
    Incarnation current = 0;
    std::set<Incarnation> former;
    bool operator==(const Incarnations&) const = default;
  };

  std::uint64_t term = 0;  // 0 if the log is empty.
  std::uint64_t run = 0;
  // This and the following fields are set from the first epoch on.
  std::uint64_t config = 0;
  std::map<ReplicaId, Incarnations> lives;
  Epoch epoch;
  std::optional<StateId> canonical;
  std::vector<Member> members;  // With the samples of the next step.
  SampleSet consumed;           // Consumed by all steps that led to canonical.
  // The committed states that were not rolled back, oldest first; the last one is canonical. A step
  // takes about 200 bytes.
  struct CommittedState {
    StateId state;
    std::optional<Commit> commit;      // Nullopt for the initial state.
    std::vector<SampleRange> samples;  // The samples of the step, merged.
    bool operator==(const CommittedState&) const = default;
  };
  std::vector<CommittedState> past;
  // The samples of states older than these, which trim() has forgotten.
  SampleSet before_past;
  std::map<StateId, CommittedState> lost;  // The states that were rolled back.

  // Whether the state is canonical or an ancestor of it.
  bool on_chain(const StateId& state) const;
  // Whether the state was ever committed.
  bool knows(const StateId& state) const;
  // Whether the run can be rolled back to the state, which takes knowing what led there.
  bool can_go_to(const StateId& state) const;
  // The commit that made canonical; nullopt if nothing was committed yet.
  const std::optional<Commit>& commit() const;
  // The last commits that led to canonical, oldest first.
  std::vector<Commit> recent(std::size_t count) const;

  bool operator==(const History&) const = default;
};

// How many of the states that led to canonical a history keeps at least. A replica that has loaded
// an older checkpoint is treated as one that is behind, but no run can go back that far.
inline constexpr std::size_t kPastMin = std::size_t{1} << 16U;

// Forgets all but the newest `past_min` states, and the rolled-back states that descend from the
// forgotten ones.
void trim(History& history, std::size_t past_min = kPastMin);

// Forgets the rolled-back states that descend from a state that is not known: no run can go back to
// them.
void forget_detached(History& history);

// Appends the record. Throws Error, naming the record, if it cannot follow: a term or an epoch that
// is not higher; a commit of another epoch, on a state other than canonical, or with samples that
// were already trained. Trims the history when it has twice as many states as it must keep.
void append(History& history, const Record& record);

}  // namespace sherd::ft
