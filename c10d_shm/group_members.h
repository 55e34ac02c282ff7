// SPDX-License-Identifier: Apache-2.0
//
// Who takes part in a group that is formed anew: what c10d's reconfigure handles mean to this
// backend, and which rank each member gets. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "base/status.h"

namespace sherd::c10d_shm {

// What a backend hands out for others to name it by: "shm:RANK:ID", its rank in the whole job,
// for errors, and a number that no other backend has.
struct MemberHandle {
  std::uint64_t global_rank = 0;
  std::uint64_t id = 0;

  std::string to_text() const;
  // kInvalidArgument unless `text` is one.
  static Result<MemberHandle> from_text(const std::string& text);
};

enum class MemberOrder {
  kAsGiven,  // The position in the list is the rank.
  kByRank,   // By rank in the whole job, then by number: equal on every member.
};

struct GroupMembers {
  int rank = 0;                             // Of this process.
  std::vector<std::uint64_t> global_ranks;  // One for each member, in order.
};

// kInvalidArgument when a handle is none of this backend's, comes twice, or `own` is missing.
Result<GroupMembers> group_members(
    const std::vector<std::string>& handles,
    MemberOrder order,
    const MemberHandle& own);

}  // namespace sherd::c10d_shm
