// SPDX-License-Identifier: Apache-2.0
#include "exchange/segments.h"

#include <algorithm>

namespace sherd::exchange {

std::vector<Segment> segments_of(const FlatSpec& flat) {
  std::vector<Segment> segments;
  std::int64_t end = 0;
  const auto add = [&](std::int64_t until, int parameter) {
    if (until > end) {
      segments.push_back({{end, until}, parameter});
      end = until;
    }
  };
  for (int p = 0; p < flat.layout.parameters(); ++p) {
    if (travels_alone(flat, p)) {
      const auto offset = flat.layout.offsets[static_cast<std::size_t>(p)];
      add(offset, -1);
      add(offset + flat.layout.numels[static_cast<std::size_t>(p)], p);
    }
  }
  add(flat.layout.numel, -1);
  return segments;
}

plan::ElementRange intersection(
    const plan::ElementRange& a, const plan::ElementRange& b) {
  const auto begin = std::min(std::max(a.begin, b.begin), a.end);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace sherd::exchange
