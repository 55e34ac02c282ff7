// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/chunk_plan.h"

#include "base/check.h"

namespace sherd::ft::transfer {

std::optional<std::uint64_t> ChunkPlan::next(std::size_t donor) {
  std::uint64_t chunk = first_;
  if (!again_.empty()) {
    chunk = *again_.begin();
    again_.erase(again_.begin());
  } else if (first_ == chunks_) {
    return std::nullopt;
  } else {
    ++first_;
  }
  asked_[chunk] = donor;
  return chunk;
}

void ChunkPlan::came(std::uint64_t chunk) {
  SHERD_ASSERT(asked_.erase(chunk) == 1, "a chunk comes from who was asked");
  ++came_;
}

void ChunkPlan::damaged(std::uint64_t chunk) {
  SHERD_ASSERT(asked_.erase(chunk) == 1, "a chunk comes from who was asked");
  again_.insert(chunk);
}

void ChunkPlan::lost(std::size_t donor) {
  for (const auto& [chunk, asked] : asked_) {
    if (asked == donor) {
      again_.insert(chunk);
    }
  }
  std::erase_if(asked_, [&](const auto& one) { return one.second == donor; });
}

}  // namespace sherd::ft::transfer
