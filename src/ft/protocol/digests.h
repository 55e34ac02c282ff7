// SPDX-License-Identifier: Apache-2.0
//
// Who holds wrong bits, by what replicas say of one state: those that differ from
// most. Thread rule: values and pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

struct ReportedDigest {
  ReplicaId replica = 0;
  // That it makes the next ones of, by itself; none: it does not.
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
  // Why nobody can say whose bits are right; empty: nothing differs, or most agree,
  // or those who know more are still to come.
  std::string tie;
  std::vector<ReplicaId> tied;  // Between whom.
};

// Most are more than half of those that made the state by themselves, and two at
// least: a replica that has copied it may have copied what is wrong.
DigestVerdict judge(const std::vector<ReportedDigest>& claims);

}  // namespace sherd::ft
