// SPDX-License-Identifier: Apache-2.0
//
// ChunkPlan decides which chunk is asked of which donor: each of one at a time, in
// their order, the next one of whoever has room for it, so that a faster donor
// gives more. What a donor that is lost had not given is asked of others. Thread
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

  // To be asked of `donor` now; none: all are there or asked for.
  std::optional<std::uint64_t> next(std::size_t donor);
  // It has come and is right. REQUIRES: it was asked of somebody.
  void came(std::uint64_t chunk);
  // It has to be asked for again. REQUIRES: the same.
  void damaged(std::uint64_t chunk);
  void lost(std::size_t donor);

  bool all_came() const { return came_ == chunks_; }

 private:
  std::uint64_t chunks_;
  std::uint64_t first_ = 0;                     // That nobody was asked for.
  std::set<std::uint64_t> again_;               // Before it.
  std::map<std::uint64_t, std::size_t> asked_;  // Of whom.
  std::uint64_t came_ = 0;
};

// Which of these is right, of what donors say a state is: that which most say, of
// equally many the first. Empty ones have not been said; 0 when all are.
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
