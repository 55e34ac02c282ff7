// SPDX-License-Identifier: Apache-2.0
//
// Finds replicas whose parameters are wrong: it compares the digests that replicas report of one
// state, and those that differ from most are wrong. Thread rule: values and pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

struct ReportedDigest {
  ReplicaId replica = 0;
  // The state from which the replica makes the next one by itself; nullopt if it is no member.
  std::optional<StateId> held;
  std::optional<StateDigest> digest{};
};

struct DigestVerdict {
  struct Wrong {
    ReplicaId replica = 0;
    std::string reason;
    bool operator==(const Wrong&) const = default;
  };
  std::vector<Wrong> wrong;
  // Why nobody can say whose bits are right. Empty if nothing differs, if most agree, or if digests
  // that decide it are still to come.
  std::string tie;
  std::vector<ReplicaId> tied;  // The replicas whose digests differ.
};

// "Most" are more than half of the replicas that made the state by themselves, and at least two: a
// replica that has copied the state may have copied wrong bits.
DigestVerdict judge(const std::vector<ReportedDigest>& claims);

}  // namespace sherd::ft
