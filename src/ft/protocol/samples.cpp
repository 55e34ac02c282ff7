// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/samples.h"

#include <algorithm>

#include "base/check.h"

namespace sherd::ft {

std::int64_t count_of(const std::vector<SampleRange>& ranges) {
  std::int64_t count = 0;
  for (const auto& range : ranges) {
    count += range.size();
  }
  return count;
}

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

void SampleSet::add(const SampleRange& range) {
  SHERD_CHECK(
      range.begin >= 0 && range.begin <= range.end,
      "[ft] expected samples from 0 on, found ", range.begin, " to ",
      range.end);
  if (range.size() == 0) {
    return;
  }
  auto next = std::ranges::lower_bound(ranges_, range);
  SHERD_CHECK(
      (next == ranges_.end() || range.end <= next->begin) &&
          (next == ranges_.begin() || std::prev(next)->end <= range.begin),
      "[ft] expected samples ", range.begin, " to ", range.end,
      " to be free, found some of them taken");
  next = ranges_.insert(next, range);
  if (next + 1 != ranges_.end() && next->end == (next + 1)->begin) {
    next->end = (next + 1)->end;
    ranges_.erase(next + 1);
  }
  if (next != ranges_.begin() && std::prev(next)->end == next->begin) {
    std::prev(next)->end = next->end;
    ranges_.erase(next);
  }
}

void SampleSet::add(const std::vector<SampleRange>& ranges) {
  for (const auto& range : ranges) {
    add(range);
  }
}

std::vector<SampleRange> SampleSet::lowest_free(std::int64_t count) const {
  std::vector<SampleRange> free;
  std::int64_t at = 0;
  for (std::size_t i = 0; i <= ranges_.size() && count > 0; ++i) {
    const bool last = i == ranges_.size();
    const auto room = last ? count : ranges_[i].begin - at;
    if (const auto taken = std::min(room, count); taken > 0) {
      free.push_back({at, at + taken});
      count -= taken;
    }
    at = last ? at : ranges_[i].end;
  }
  return free;
}

std::int64_t SampleSet::size() const { return count_of(ranges_); }

}  // namespace sherd::ft
