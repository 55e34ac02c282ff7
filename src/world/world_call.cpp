// SPDX-License-Identifier: Apache-2.0
#include "world/world_call.h"

#include <cstring>
#include <type_traits>
#include <utility>
#include <ATen/ops/empty.h>
#include "base/check.h"
#include "base/return_if_failed.h"
#include "world/collectives.h"

namespace sherd::world {
namespace {

static_assert(std::is_trivially_copyable_v<WorldCall>);
constexpr auto kBytes = static_cast<std::int64_t>(sizeof(WorldCall));

bool match(const WorldCall& one, const WorldCall& other) {
  return one.kind == other.kind && one.bytes == other.bytes &&
      one.content == other.content &&
      (one.count == other.count ||
       one.kind == WorldCall::Kind::kAllGatherTexts);
}

std::string described(const WorldCall& call) {
  switch (call.kind) {
    case WorldCall::Kind::kAllGather:
      return str(name_of(call.kind), " of ", call.count, " numbers");
    case WorldCall::Kind::kBroadcast:
      return str(
          name_of(call.kind), " of ", call.count, " tensors of ", call.bytes,
          " bytes");
    default:
      return name_of(call.kind);
  }
}

// An error that names the first rank whose call does not match rank 0's.
Status compare_calls(const std::vector<WorldCall>& by_rank) {
  const auto& first = by_rank.front();
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const auto& other = by_rank[rank];
    if (!match(first, other)) {
      const auto mine = described(first);
      const auto theirs = described(other);
      return {
          ErrorCode::kPeerMismatch,
          str("[world] ranks went different ways: rank 0 calls ", mine,
              ", rank ", rank, " calls ", theirs,
              mine == theirs ? " of other dtypes or sizes" : "")};
    }
  }
  return {};
}

}  // namespace

const char* name_of(WorldCall::Kind kind) {
  switch (kind) {
    case WorldCall::Kind::kBarrier:
      return "World::barrier";
    case WorldCall::Kind::kAllGather:
      return "World::all_gather";
    case WorldCall::Kind::kAllGatherTexts:
      return "World::all_gather_texts";
    case WorldCall::Kind::kBroadcast:
      return "World::broadcast";
  }
  return "";
}

Result<std::vector<WorldCall>> gather_calls(
    Transport& transport, const WorldCall& mine) {
  const auto row = at::empty({kBytes}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), &mine, sizeof(mine));
  const auto rows = Collectives(transport, name_of(mine.kind)).all_gather(row);
  SHERD_RETURN_IF_FAILED(rows.status());
  std::vector<WorldCall> calls(rows.value().size());
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    std::memcpy(
        &calls[rank], rows.value()[rank].const_data_ptr(), sizeof(WorldCall));
  }
  SHERD_RETURN_IF_FAILED(compare_calls(calls));
  return calls;
}

}  // namespace sherd::world
