// SPDX-License-Identifier: Apache-2.0
//
// RingSchedule is the static schedule of a ring all-reduce: which floats travel in which frame, and
// in which order of members each element is summed. A bucket is cut into one segment per member;
// segment s begins at member s, is summed on its way round (reduce-scatter), and goes round again
// when it is complete (all-gather). A slice is a chunk of each segment of a bucket; several slices
// are in flight at once. docs/design/ring_reduce.md has the picture. Thread rule: a value; pure.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace sherd::ft::ring {

// Elements [begin, end) of a bucket.
struct FloatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const FloatRange&) const = default;
};

// Sizes differ by one at most and depend on nothing else, so that the member that begins the sum of
// an element never changes with chunks or timing.
FloatRange segment_of(std::int64_t elements, int members, int segment);

// What one frame carries: a slice at a ring step, 0 to steps - 1.
struct SliceStep {
  std::int64_t slice = 0;
  int step = 0;
  auto operator<=>(const SliceStep&) const = default;
};

// The location of a frame's floats.
struct BucketRange {
  int bucket = 0;
  int segment = 0;
  FloatRange span;
  bool operator==(const BucketRange&) const = default;
};

struct RingShape {
  int members = 1;
  int position = 0;                 // This member's.
  std::int64_t chunk_elements = 1;  // The limit for one frame.
};

class RingSchedule {
 public:
  // REQUIRES: no size is negative; 0 <= position < members; chunk_elements > 0.
  RingSchedule(std::vector<std::int64_t> elements, RingShape shape);

  const std::vector<std::int64_t>& elements() const { return elements_; }
  const RingShape& shape() const { return shape_; }
  std::int64_t slices() const { return first_slices_.back(); }
  // The frames of one slice that each member sends, and receives. 0 with one member, whose slices
  // are chunks of its only segment.
  int steps() const { return 2 * (shape_.members - 1); }
  int bucket_of(std::int64_t slice) const;

  // What this member sends and receives.
  BucketRange sent(const SliceStep& item) const;
  BucketRange received(const SliceStep& item) const;
  // Frames received up to this ring step are summed; later ones are complete already.
  bool reduces(int received_step) const {
    return received_step < shape_.members - 1;
  }
  // This member's part completes the sum.
  bool completes(int received_step) const {
    return received_step == shape_.members - 2;
  }

 private:
  BucketRange piece(std::int64_t slice, int segment) const;

  std::vector<std::int64_t> elements_;
  RingShape shape_;
  // The slices before each bucket, and after the last.
  std::vector<std::int64_t> first_slices_;
};

// "elements 0 to 99 of bucket 3".
std::string text_of(const BucketRange& piece);

}  // namespace sherd::ft::ring
