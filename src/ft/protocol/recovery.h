// SPDX-License-Identifier: Apache-2.0
//
// How a run whose log is lost goes on from what its replicas remember. This is possible only when
// all replicas that were ever in the run answer, so that no commit is overlooked. Thread rule: pure
// functions.
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
  // The last report of each incarnation that has heard of a run. Not null.
  std::vector<const Report*> answers;
  // Replicas whose processes have restarted and lost what they held, with the states that they have
  // loaded since.
  std::map<ReplicaId, std::optional<StateId>> fresh{};
  // Restarted replicas that are not connected, so that nobody knows what they have loaded.
  std::set<ReplicaId> away{};
  int replicas_min = 1;
  // At least this many replicas have to answer, no matter what is remembered.
  int replicas_start = 1;
};

struct Recovery {
  std::uint64_t run = 0;
  std::uint64_t term = 0;  // The last known term of the lost log.
  // Nullopt if recovery is not possible yet.
  std::optional<RecoveryRecord> record{};
  // The commit of a step that was voted for, to be appended after the record: the lost log may have
  // had it although no replica that answers has heard of it.
  std::optional<CommitRecord> commit{};
  std::string waits_for{};  // Why there is no record.
};

// REQUIRES: there are answers.
Recovery recovery_of(const RecoveryQuestion& question);

}  // namespace sherd::ft
