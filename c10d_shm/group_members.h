// SPDX-License-Identifier: Apache-2.0
//
// Which processes form a new group: the meaning of c10d's reconfigure handles for this backend, and
// the rank that each member gets. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "base/status.h"

namespace sherd::c10d_shm {

// The text by which others refer to a backend: "shm:RANK:ID", with its rank in the whole job, for
// errors, and a number that no other backend has.
struct MemberHandle {
  std::uint64_t global_rank = 0;
  std::uint64_t id = 0;

  std::string to_text() const;
  // kInvalidArgument unless `text` is a handle.
  static Result<MemberHandle> from_text(const std::string& text);
};

enum class MemberOrder {
  kAsGiven,  // The position in the list is the rank.
  // Ordered by rank in the whole job, then by number: equal on every member.
  kByRank,
};

struct GroupMembers {
  int rank = 0;                             // The rank of this process.
  std::vector<std::uint64_t> global_ranks;  // One for each member, in order.
};

// kInvalidArgument if a handle is not of this backend, appears twice, or `own` is missing.
Result<GroupMembers> group_members(
    const std::vector<std::string>& handles,
    MemberOrder order,
    const MemberHandle& own);

}  // namespace sherd::c10d_shm
