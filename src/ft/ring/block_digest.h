// SPDX-License-Identifier: Apache-2.0
//
// The digest of a sum: XXH3 (64 bits) over the XXH3 of each block of kDigestBlockElements elements.
// Buckets are in the order of the layout, and each begins a new block. Blocks are hashed as soon as
// they are complete, while they are in the cache, so the digest does not depend on chunks, members
// or timing. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <vector>
#include "ft/ring/reduce_schedule.h"

namespace sherd::ft::ring {

constexpr std::int64_t kDigestBlockElements = 65536;

class BlockDigest {
 public:
  explicit BlockDigest(const std::vector<std::int64_t>& elements);

  // These elements of the bucket at `out` are final. REQUIRES: each element is reported once.
  void complete(int bucket, const float* out, const FloatRange& span);
  // REQUIRES: all elements were reported.
  std::uint64_t value() const;

 private:
  struct Block {
    std::int64_t missing = 0;
    std::uint64_t hash = 0;
  };
  std::vector<std::int64_t> elements_;
  std::vector<std::size_t> first_blocks_;  // Indexed by bucket.
  std::vector<Block> blocks_;
};

// The digest of a complete sum, whose buckets lie one behind the other.
std::uint64_t digest_of(
    const std::vector<std::int64_t>& elements, const float* sum);

}  // namespace sherd::ft::ring
