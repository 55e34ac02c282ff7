// SPDX-License-Identifier: Apache-2.0
#include "exchange/gradient_chunks.h"

#include <algorithm>

namespace sherd::exchange {

std::vector<GradientChunk> chunks_of(const FlatSpec& flat) {
  std::vector<GradientChunk> chunks;
  std::int64_t end = 0;
  const auto add = [&](std::int64_t until, int parameter) {
    if (until > end) {
      chunks.push_back({{end, until}, parameter});
      end = until;
    }
  };
  for (int p = 0; p < flat.layout.parameters(); ++p) {
    if (may_bypass_slot(flat, p)) {
      const auto offset = flat.layout.offsets[static_cast<std::size_t>(p)];
      add(offset, -1);
      add(offset + flat.layout.numels[static_cast<std::size_t>(p)], p);
    }
  }
  add(flat.layout.numel, -1);
  return chunks;
}

plan::ElementRange intersection(
    const plan::ElementRange& a, const plan::ElementRange& b) {
  const auto begin = std::min(std::max(a.begin, b.begin), a.end);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace sherd::exchange
