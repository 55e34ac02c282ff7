// SPDX-License-Identifier: Apache-2.0
//
// Reduction is one attempt at one member: it puts what Course allows into
// practice on the buckets' floats, and knows no sockets. It may begin to receive
// before its member has begun. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "ft/ring/course.h"
#include "ft/ring/digest.h"
#include "ft/ring/frame.h"
#include "ft/ring/schedule.h"

namespace sherd::ft::ring {

// This member's part of a bucket.
struct Bucket {
  bool given = false;
  const float* in = nullptr;  // Null: zeros.
  float* out = nullptr;
};

class Reduction {
 public:
  // Both outlive it.
  Reduction(
      const Schedule& schedule, const std::vector<Bucket>& buckets, int window);

  // `factor` is of this member's floats; none: it brings zeros. The string says
  // why not: others have begun another step.
  std::string begin(std::int64_t step, std::optional<float> factor);
  bool begun() const { return begun_; }
  std::int64_t step() const { return *step_; }  // REQUIRES: begun().

  // One chunk of what waited for begin() or a bucket; false: none does.
  bool work();

  struct Outgoing {
    FrameHeader header;
    const float* payload = nullptr;
  };
  // The frame to send now, whose payload stays as it is until it has arrived at
  // the next member; none: nothing is ready.
  std::optional<Outgoing> next_frame();

  // Where the payload is to go. The status names what was expected and found.
  Result<float*> place_for(const FrameHeader& header);
  // The payload of the last place_for() is there and intact.
  void arrived();

  bool finished() const;
  // Nothing more is to come from the member before.
  bool has_arrived() const { return !course_ || course_->has_arrived(); }
  std::uint64_t digest() const { return digest_.value(); }
  std::int64_t slices_done() const;
  // A bucket of this member is what the next slice lacks.
  bool lacks_bucket() const;

 private:
  using Chunk = std::unique_ptr<float[]>;
  struct Held {
    Item item;
    Chunk sum;
  };
  bool can_take(const Item& item) const;
  void take(const Item& item, const float* sum);
  bool work_alone();
  void contribute(const Piece& piece, const float* sum);
  int given() const;
  Chunk spare_chunk();

  const Schedule& schedule_;
  const std::vector<Bucket>& buckets_;
  std::optional<Course> course_;  // None: the ring has one member.
  Digest digest_;
  bool begun_ = false;
  std::optional<std::int64_t> step_;
  std::optional<float> factor_;
  std::int64_t alone_done_ = 0;  // Slices, where there is one member.
  mutable int given_ = 0;
  // Arriving.
  Item item_;
  Chunk chunk_;
  std::deque<Held> held_;
  std::vector<Chunk> spare_;
};

}  // namespace sherd::ft::ring
