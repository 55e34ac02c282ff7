// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/ring_schedule.h"

#include <algorithm>
#include <utility>
#include "base/check.h"

namespace sherd::ft::ring {

FloatRange segment_of(std::int64_t elements, int members, int segment) {
  const std::int64_t size = elements / members;
  const std::int64_t longer = elements % members;  // The first so many.
  const std::int64_t begin =
      segment * size + std::min<std::int64_t>(segment, longer);
  return {begin, begin + size + (segment < longer ? 1 : 0)};
}

RingSchedule::RingSchedule(std::vector<std::int64_t> elements, RingShape shape)
    : elements_(std::move(elements)), shape_(shape), first_slices_{0} {
  SHERD_ASSERT(
      shape.members > 0 && shape.position >= 0 &&
      shape.position < shape.members && shape.chunk_elements > 0);
  first_slices_.reserve(elements_.size() + 1);
  for (const auto count : elements_) {
    SHERD_ASSERT(count >= 0);
    // No segment is longer than the first.
    const auto longest = segment_of(count, shape.members, 0).size();
    const auto chunks = longest / shape.chunk_elements +
        (longest % shape.chunk_elements == 0 ? 0 : 1);
    first_slices_.push_back(first_slices_.back() + chunks);
  }
}

int RingSchedule::bucket_of(std::int64_t slice) const {
  SHERD_ASSERT(slice >= 0 && slice < slices());
  const auto after =
      std::upper_bound(first_slices_.begin(), first_slices_.end(), slice);
  return static_cast<int>(after - first_slices_.begin()) - 1;
}

BucketRange RingSchedule::piece(std::int64_t slice, int segment) const {
  const int bucket = bucket_of(slice);
  const auto b = static_cast<std::size_t>(bucket);
  const FloatRange whole = segment_of(elements_[b], shape_.members, segment);
  const auto chunk = slice - first_slices_[b];
  FloatRange span;
  span.begin = std::min(whole.begin + chunk * shape_.chunk_elements, whole.end);
  span.end = std::min(span.begin + shape_.chunk_elements, whole.end);
  return {bucket, segment, span};
}

BucketRange RingSchedule::sent(const SliceStep& item) const {
  const int members = shape_.members;
  return piece(
      item.slice, (shape_.position - item.step + 2 * members) % members);
}

BucketRange RingSchedule::received(const SliceStep& item) const {
  const int members = shape_.members;
  return piece(
      item.slice, (shape_.position - 1 - item.step + 2 * members) % members);
}

std::string text_of(const BucketRange& piece) {
  if (piece.span.size() == 0) {
    return str("no elements of bucket ", piece.bucket);
  }
  return str(
      "elements ", piece.span.begin, " to ", piece.span.end - 1, " of bucket ",
      piece.bucket);
}

}  // namespace sherd::ft::ring
