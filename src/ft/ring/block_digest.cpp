// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/block_digest.h"

#include <algorithm>
#include "base/check.h"
#include "base/digest.h"

namespace sherd::ft::ring {

BlockDigest::BlockDigest(const std::vector<std::int64_t>& elements)
    : elements_(elements) {
  for (const auto count : elements) {
    first_blocks_.push_back(blocks_.size());
    for (std::int64_t begin = 0; begin < count; begin += kDigestBlockElements) {
      blocks_.push_back({std::min(kDigestBlockElements, count - begin), 0});
    }
  }
}

void BlockDigest::complete(
    int bucket, const float* out, const FloatRange& span) {
  const auto b = static_cast<std::size_t>(bucket);
  for (auto at = span.begin; at < span.end;) {
    const auto k = at / kDigestBlockElements;
    const auto begin = k * kDigestBlockElements;
    const auto end = std::min(begin + kDigestBlockElements, elements_[b]);
    const auto stop = std::min(end, span.end);
    Block& block = blocks_[first_blocks_[b] + static_cast<std::size_t>(k)];
    block.missing -= stop - at;
    SHERD_ASSERT(block.missing >= 0, "elements complete twice");
    if (block.missing == 0) {
      block.hash = sherd::digest_of(
          out + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
    }
    at = stop;
  }
}

std::uint64_t BlockDigest::value() const {
  std::vector<std::uint64_t> hashes;
  hashes.reserve(blocks_.size());
  for (const auto& block : blocks_) {
    SHERD_ASSERT(block.missing == 0, "a digest of an incomplete sum");
    hashes.push_back(block.hash);
  }
  return sherd::digest_of(hashes.data(), hashes.size() * sizeof(std::uint64_t));
}

std::uint64_t digest_of(
    const std::vector<std::int64_t>& elements, const float* sum) {
  BlockDigest digest(elements);
  for (std::size_t b = 0; b < elements.size(); ++b) {
    digest.complete(static_cast<int>(b), sum, {0, elements[b]});
    sum += elements[b];
  }
  return digest.value();
}

}  // namespace sherd::ft::ring
