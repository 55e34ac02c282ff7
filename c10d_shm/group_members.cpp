// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/group_members.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <tuple>
#include "base/check.h"

namespace sherd::c10d_shm {
namespace {

constexpr std::string_view kPrefix = "shm:";

// Removes a number and, unless it ends the text, a colon from the front of `text`.
bool take_number(std::string_view& text, std::uint64_t& number) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) {
    return false;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.empty() && text.front() != ':') {
    return false;
  }
  text.remove_prefix(text.empty() ? 0 : 1);
  return true;
}

Status invalid(std::string sentence) {
  return {ErrorCode::kInvalidArgument, std::move(sentence)};
}

}  // namespace

std::string MemberHandle::to_text() const {
  return str(kPrefix, global_rank, ":", id);
}

Result<MemberHandle> MemberHandle::from_text(const std::string& text) {
  MemberHandle handle;
  std::string_view rest = text;
  if (rest.starts_with(kPrefix)) {
    rest.remove_prefix(kPrefix.size());
    if (take_number(rest, handle.global_rank) && !rest.empty() &&
        take_number(rest, handle.id) && rest.empty() &&
        handle.to_text() == text) {
      return handle;
    }
  }
  return invalid(
      str("[c10d_shm] reconfigure: expected handles such as \"shm:RANK:ID\", "
          "found \"",
          text, "\""));
}

Result<GroupMembers> group_members(
    const std::vector<std::string>& handles,
    MemberOrder order,
    const MemberHandle& own) {
  std::vector<MemberHandle> members;
  for (const std::string& text : handles) {
    auto handle = MemberHandle::from_text(text);
    SHERD_RETURN_IF_FAILED(handle.status());
    members.push_back(handle.value());
  }
  if (order == MemberOrder::kByRank) {
    std::ranges::sort(members, [](const auto& a, const auto& b) {
      return std::tie(a.global_rank, a.id) < std::tie(b.global_rank, b.id);
    });
  }
  GroupMembers group{.rank = -1, .global_ranks = {}};
  for (const MemberHandle& member : members) {
    const auto same = [&](const auto& other) { return other.id == member.id; };
    if (std::ranges::count_if(members, same) > 1) {
      return invalid(
          str("[c10d_shm] reconfigure: expected each handle once, found ",
              member.to_text(), " twice"));
    }
    if (member.id == own.id) {
      group.rank = static_cast<int>(group.global_ranks.size());
    }
    group.global_ranks.push_back(member.global_rank);
  }
  if (group.rank < 0) {
    return invalid(str(
        "[c10d_shm] reconfigure: expected the handle of this rank, ",
        own.to_text(), ", among the ", handles.size(), " handles, found none"));
  }
  return group;
}

}  // namespace sherd::c10d_shm
