// SPDX-License-Identifier: Apache-2.0
//
// How a run goes on whose log is lost, from what its replicas remember: only when all that were ever
// in it answer, so that no commit is overlooked. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

struct RecoveryQuestion {
  // The reports of lives that have heard of a run, the last one of each; not null.
  std::vector<const Report*> answers;
  // Replicas whose processes have started anew, so that what they had is gone, and the states that
  // they have loaded since.
  std::map<ReplicaId, std::optional<StateId>> fresh{};
  // Those that have started anew and are not connected: what they have loaded is not known.
  std::set<ReplicaId> away{};
  int replicas_min = 1;
  // So many have to answer, whatever is remembered.
  int replicas_start = 1;
};

struct Recovery {
  std::uint64_t run = 0;
  std::uint64_t term = 0;  // The last one of the lost log that is known.
  // All that were in the run, each in its last life.
  std::vector<IncarnationRecord> lives{};
  // None: it is not possible yet.
  std::optional<RecoveryRecord> record{};
  // The commit of a step that was voted for, to follow the record: the lost log may have had it, and
  // nobody who answers has heard of that.
  std::optional<CommitRecord> commit{};
  std::string waits_for{};  // Why there is no record.
};

// REQUIRES: there are answers.
Recovery recovery_of(const RecoveryQuestion& question);

}  // namespace sherd::ft
