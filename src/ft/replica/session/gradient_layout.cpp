// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/gradient_layout.h"

#include "base/check.h"

namespace sherd::ft {

GradientLayout::GradientLayout(
    const std::vector<std::int64_t>& slices, std::int64_t bucket_elements)
    : begins_(slices.size()), marks_(slices.size()), bucket_of_(slices.size()) {
  SHERD_ASSERT(bucket_elements > 0);
  std::int64_t end = 0;
  for (auto last = slices.size(); last > 0 || buckets_.empty();) {
    const auto begin = end;
    auto first = last;
    while (first > 0 && end - begin < bucket_elements) {
      begins_[--first] = end;
      end += slices[first];
    }
    for (auto slice = first; slice < last; ++slice) {
      marks_[slice] = end++;
      bucket_of_[slice] = static_cast<int>(buckets_.size());
    }
    buckets_.push_back(end - begin);
    last = first;
  }
}

std::vector<std::string> bucket_names(
    const GradientLayout& layout, const std::vector<std::string>& slices) {
  std::vector<std::string> first(layout.buckets().size());
  std::vector<std::string> last(first.size());
  for (std::size_t slice = 0; slice < slices.size(); ++slice) {
    const auto bucket = static_cast<std::size_t>(layout.bucket_of(slice));
    if (first[bucket].empty()) {
      first[bucket] = slices[slice];
    }
    last[bucket] = slices[slice];
  }
  for (std::size_t bucket = 0; bucket < first.size(); ++bucket) {
    if (last[bucket] != first[bucket]) {
      first[bucket] += " to " + last[bucket];
    }
  }
  return first;
}

}  // namespace sherd::ft
