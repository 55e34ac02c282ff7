// SPDX-License-Identifier: Apache-2.0
//
// ReduceSchedule is the static schedule of an all-reduce at one member: which floats travel in
// which frame, to and from whom, and in which order of members each element is summed. In a ring a
// bucket has one segment per member, in a double tree only one. A slice is a chunk of each segment
// of a bucket; several slices are in flight at once. docs/design/ring_reduce.md describes how they
// travel. Thread rule: a value.
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

// Segment sizes differ by at most one and depend on nothing else, so that the member that begins
// the sum of an element never changes with chunks or timing.
FloatRange segment_of(std::int64_t elements, int segments, int segment);

// One of the frames of a slice that a member sends, or one of those that it receives, counted from
// 0.
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

// A frame of a slice that this member sends.
struct SendStep {
  int to = 0;    // An index into receivers().
  int step = 0;  // The frame's index at that receiver.
  int segment = 0;
  int after = 0;  // How many frames of the slice must have been taken before.
  bool begins_sum = false;  // It contains only this member's part.
};

// A frame of a slice that this member receives. The frames of a slice are taken in the order of the
// pattern, which determines the order of each element's sum.
struct ReceiveStep {
  // How the frame is used. kAddOwn: its sum with this member's own part is stored in the place of
  // the sum; kAdd: it is added to what is stored there; kCopy: it is the complete sum.
  enum class Use { kAddOwn, kAdd, kCopy };
  int from = 0;  // An index into senders().
  int segment = 0;
  Use use = Use::kCopy;
  bool completes = false;   // It completes the sum.
  bool begins_sum = false;  // It contains only the sender's part.
};

class ReduceSchedule {
 public:
  struct Options {
    int members = 1;
    int position = 0;                 // The position of this member.
    std::int64_t chunk_elements = 1;  // The limit for one frame.
  };
  // The frames of a slice.
  struct Pattern {
    std::vector<SendStep> sends;
    std::vector<ReceiveStep> receives;
  };

  // REQUIRES: no size is negative; 0 <= position < members; chunk_elements > 0.
  ReduceSchedule(std::vector<std::int64_t> elements, Options options);

  const std::vector<std::int64_t>& elements() const { return elements_; }
  const Options& options() const { return options_; }
  // The positions that it sends to and receives from; empty if it is the only member, whose slices
  // are chunks of its only segment.
  const std::vector<int>& receivers() const { return receivers_; }
  const std::vector<int>& senders() const { return senders_; }

  std::int64_t slices() const { return first_slices_.back(); }
  int bucket_of(std::int64_t slice) const;
  const Pattern& pattern(std::int64_t slice) const {
    return patterns_[static_cast<std::size_t>(slice) % patterns_.size()];
  }
  int sends(std::int64_t slice) const {
    return static_cast<int>(pattern(slice).sends.size());
  }
  int receives(std::int64_t slice) const {
    return static_cast<int>(pattern(slice).receives.size());
  }
  const SendStep& send(const SliceStep& item) const {
    return pattern(item.slice).sends[static_cast<std::size_t>(item.step)];
  }
  const ReceiveStep& receive(const SliceStep& item) const {
    return pattern(item.slice).receives[static_cast<std::size_t>(item.step)];
  }
  // How many frames of all slices come from one of the senders.
  std::int64_t receives_from(int sender) const;

  // What this member sends and receives.
  BucketRange sent(const SliceStep& item) const {
    return piece(item.slice, send(item).segment);
  }
  BucketRange received(const SliceStep& item) const {
    return piece(item.slice, receive(item).segment);
  }
  // A chunk of this member's only segment. REQUIRES: it is the only member.
  BucketRange own(std::int64_t slice) const { return piece(slice, 0); }

  // How many slices are in flight at once if a ring has room for `slots`. In trees there are at
  // least as many as keep both trees busy, up and down.
  int window(int slots) const;
  // Frames may arrive for this many slices, counted from the first one that is not complete.
  int early_slices_max(int window) const;

 private:
  BucketRange piece(std::int64_t slice, int segment) const;

  std::vector<std::int64_t> elements_;
  Options options_;
  int segments_ = 1;
  std::vector<int> receivers_;
  std::vector<int> senders_;
  // Slices use the patterns in turn.
  std::vector<Pattern> patterns_;
  // Indexed by bucket.
  std::vector<std::int64_t> chunk_elements_;
  // The number of slices before each bucket, and after the last one.
  std::vector<std::int64_t> first_slices_;
};

// "elements 0 to 99 of bucket 3".
std::string text_of(const BucketRange& piece);

}  // namespace sherd::ft::ring
