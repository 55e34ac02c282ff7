// SPDX-License-Identifier: Apache-2.0
//
// RingAllReduce is one ring all-reduce (reduce-scatter, then all-gather) over the buckets at one
// member: it does on the buckets' floats what SendSchedule allows, and knows no sockets. It may
// receive before its member has begun. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "ft/ring/block_digest.h"
#include "ft/ring/frame.h"
#include "ft/ring/ring_schedule.h"
#include "ft/ring/send_schedule.h"
#include "ft/ring/shared_floats.h"

namespace sherd::ft::ring {

// This member's part of a bucket.
struct Bucket {
  bool given = false;
  const float* in = nullptr;  // Null: zeros.
  float* out = nullptr;
};

class RingAllReduce {
 public:
  // `schedule` and `buckets` outlive it.
  RingAllReduce(
      const RingSchedule& schedule,
      const std::vector<Bucket>& buckets,
      int window);

  // `factor` scales this member's floats; none: it contributes zeros. Returns why it cannot begin:
  // others have begun another step.
  std::string begin(std::int64_t step, std::optional<float> factor);
  bool begun() const { return begun_; }
  std::int64_t step() const { return *step_; }  // REQUIRES: begun().

  // Processes one chunk that waited for begin() or a bucket; false: there is none.
  bool work();

  struct Outgoing {
    FrameHeader header;
    const float* payload = nullptr;
  };
  // The frame to send now; none: nothing is ready. Its payload stays as it is until the next member
  // has taken it. What lies in `shared` is not sent, because the next member reads it there; null:
  // it cannot.
  std::optional<Outgoing> next_frame(const SharedFloats* shared);

  // For kData: where the payload goes. The status names what was expected and found.
  Result<float*> place_for(const FrameHeader& header);
  // The same for kSharedData, whose payload is in `memory`, which outlives this; null: there is
  // none.
  Status expect_shared_data(
      const FrameHeader& header, const PeerFloats* memory);
  // The payload of the last of these two calls is there and intact.
  void arrived();
  // The previous member's lease ended before its data were read: this reduction never finishes.
  bool stale() const { return stale_; }

  bool finished() const;
  // The whole sum is here; the next member may still lack some of it.
  bool complete() const {
    return begun_ && !stale_ &&
        (send_schedule_ ? send_schedule_->has_taken() : finished());
  }
  // The previous member has sent everything.
  bool has_arrived() const {
    return !send_schedule_ || send_schedule_->has_arrived();
  }
  std::uint64_t digest() const { return digest_.value(); }
  std::int64_t slices_done() const;
  // The next slice waits for a bucket of this member.
  bool lacks_bucket() const;

 private:
  using Chunk = std::unique_ptr<float[]>;
  // What the previous member has sent or shares.
  struct Input {
    const float* floats = nullptr;
    // For kSharedData only.
    const PeerFloats* memory = nullptr;
    std::uint64_t lease = 0;
    float factor = 0;  // Still to be applied; 0: none.
  };
  struct DeferredInput {
    SliceStep item;
    Chunk sum;  // None for shared data.
    Input part;
  };
  Status expect(const FrameHeader& header, BucketRange& piece);
  bool can_take(const SliceStep& item) const;
  void take(const SliceStep& item, const Input& part);
  void take_block(
      const SliceStep& item, const BucketRange& piece, const Input& part);
  bool work_alone();
  void begin_sum(const BucketRange& piece);
  void add_to_sum(const BucketRange& piece, const Input& part);
  bool brings_zeros(const Bucket& bucket) const;
  const float* shared_input(
      const BucketRange& piece, const SharedFloats* shared) const;
  int given() const;
  Chunk spare_chunk();

  const RingSchedule& schedule_;
  const std::vector<Bucket>& buckets_;
  std::optional<SendSchedule> send_schedule_;  // None with one member.
  BlockDigest digest_;
  bool begun_ = false;
  std::optional<std::int64_t> step_;
  std::optional<float> factor_;
  std::int64_t alone_done_ = 0;  // Slices, with one member.
  mutable int given_ = 0;
  // The chunk being received.
  SliceStep item_;
  Chunk chunk_;
  Input part_;
  bool stale_ = false;
  std::deque<DeferredInput> held_;
  std::vector<Chunk> spare_;
};

}  // namespace sherd::ft::ring
