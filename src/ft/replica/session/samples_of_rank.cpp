// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/samples_of_rank.h"

#include <algorithm>

#include "base/check.h"
#include "ft/protocol/samples.h"

namespace sherd::ft {

std::vector<SampleRange> samples_of_rank(
    const std::vector<SampleRange>& samples, int rank, int ranks) {
  const auto count = count_of(samples);
  SHERD_CHECK(
      count % ranks == 0, "[ft] expected samples of a replica that its ", ranks,
      " ranks divide, found ", count, "; see --samples-per-replica");
  const auto each = count / ranks;
  std::int64_t skip = rank * each;
  std::int64_t left = each;
  std::vector<SampleRange> mine;
  for (const auto& range : samples) {
    const auto skipped = std::min(skip, range.size());
    const auto taken = std::min(left, range.size() - skipped);
    skip -= skipped;
    left -= taken;
    if (taken > 0) {
      mine.push_back({range.begin + skipped, range.begin + skipped + taken});
    }
  }
  return mine;
}

}  // namespace sherd::ft
