// SPDX-License-Identifier: Apache-2.0
//
// ChunkPlan assigns chunks to donors, in order: each chunk to one donor at a time, whichever has
// room, so that a faster donor delivers more. Chunks of a lost donor are assigned again. Thread
// rule: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace sherd::ft::transfer {

class ChunkPlan {
 public:
  explicit ChunkPlan(std::uint64_t chunks = 0) : chunks_(chunks) {}

  // The chunk to request from `donor` now; nullopt if all have arrived or are requested.
  std::optional<std::uint64_t> next(std::size_t donor);
  // The chunk has arrived intact. REQUIRES: it was assigned.
  void came(std::uint64_t chunk);
  // The chunk has to be requested again. REQUIRES: it was assigned.
  void damaged(std::uint64_t chunk);
  void lost(std::size_t donor);

  bool all_came() const { return came_ == chunks_; }

 private:
  std::uint64_t chunks_;
  // The first chunk never requested so far.
  std::uint64_t first_ = 0;
  // Earlier chunks to request again.
  std::set<std::uint64_t> again_;
  // The donor of each requested chunk.
  std::map<std::uint64_t, std::size_t> asked_;
  std::uint64_t came_ = 0;
};

// The index of the most frequent value among the donors' answers, or of the first one if several
// are equally frequent. Missing answers do not count; 0 if all are missing.
template <typename T>
std::size_t majority_of(const std::vector<std::optional<T>>& said) {
  std::size_t best = 0;
  std::ptrdiff_t most = 0;
  for (std::size_t i = 0; i < said.size(); ++i) {
    std::ptrdiff_t same = 0;
    for (const auto& other : said) {
      same += said[i] && other == said[i] ? 1 : 0;
    }
    if (same > most) {
      most = same;
      best = i;
    }
  }
  return best;
}

}  // namespace sherd::ft::transfer
