// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/gradient_layout.h"

#include "base/check.h"

namespace sherd::ft {

GradientLayout::GradientLayout(
    const std::vector<std::int64_t>& slices, std::int64_t bucket_elements)
    : begins_(slices.size()), bucket_of_(slices.size()) {
  SHERD_ASSERT(bucket_elements > 0);
  std::int64_t begin = 0;
  for (auto slice = slices.size(); slice-- > 0;) {
    if (buckets_.empty() || buckets_.back() >= bucket_elements) {
      buckets_.push_back(0);
    }
    begins_[slice] = begin;
    bucket_of_[slice] = static_cast<int>(buckets_.size()) - 1;
    begin += slices[slice];
    buckets_.back() += slices[slice];
  }
  if (buckets_.empty()) {
    buckets_.push_back(0);
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
