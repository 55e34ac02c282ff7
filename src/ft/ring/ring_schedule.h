// SPDX-License-Identifier: Apache-2.0
//
// RingSchedule says which floats go round a ring of members, and in which order of
// members each is summed. A bucket is cut into as many segments as there are
// members; segment s begins at member s, is summed on its way round (reduce),
// and goes round once more when it is complete (gather). A slice is a chunk of
// each segment of a bucket; slices go round one after another, several at once.
// docs/design/ring_reduce.md has the picture. Thread rule: a value; pure.
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

// Sizes differ by one at most, and depend on nothing else: which member begins
// the sum of an element never changes with chunks or timing.
FloatRange segment_of(std::int64_t elements, int members, int segment);

// What one frame carries: a slice's piece at a step of its way, 0 to steps - 1.
struct SliceStep {
  std::int64_t slice = 0;
  int step = 0;
  auto operator<=>(const SliceStep&) const = default;
};

// Where an item lies.
struct BucketRange {
  int bucket = 0;
  int segment = 0;
  FloatRange span;
  bool operator==(const BucketRange&) const = default;
};

struct RingShape {
  int members = 1;
  int position = 0;                 // Of this member.
  std::int64_t chunk_elements = 1;  // At most so many to a frame.
};

class RingSchedule {
 public:
  // REQUIRES: no size is negative; 0 <= position < members; chunk_elements > 0.
  RingSchedule(std::vector<std::int64_t> elements, RingShape shape);

  const std::vector<std::int64_t>& elements() const { return elements_; }
  const RingShape& shape() const { return shape_; }
  std::int64_t slices() const { return first_slices_.back(); }
  // Frames that each member sends, and receives, of each slice. None when the
  // ring has one member, whose slices are chunks of its only segment.
  int steps() const { return 2 * (shape_.members - 1); }
  int bucket_of(std::int64_t slice) const;

  // What this member sends and receives.
  BucketRange sent(const SliceStep& item) const;
  BucketRange received(const SliceStep& item) const;
  // Received items up to here are summed, later ones complete already.
  bool reduces(int received_step) const {
    return received_step < shape_.members - 1;
  }
  // The sum of a received item is complete with this member's part.
  bool completes(int received_step) const {
    return received_step == shape_.members - 2;
  }

 private:
  BucketRange piece(std::int64_t slice, int segment) const;

  std::vector<std::int64_t> elements_;
  RingShape shape_;
  // Of each bucket, and after the last: how many slices come before.
  std::vector<std::int64_t> first_slices_;
};

// "elements 0 to 99 of bucket 3".
std::string text_of(const BucketRange& piece);

}  // namespace sherd::ft::ring
