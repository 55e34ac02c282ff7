// SPDX-License-Identifier: Apache-2.0
//
// RingAllReduce is one attempt at one member: it puts what SendSchedule allows into
// practice on the buckets' floats, and knows no sockets. It may begin to receive
// before its member has begun. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "ft/ring/send_schedule.h"
#include "ft/ring/block_digest.h"
#include "ft/ring/frame.h"
#include "ft/ring/ring_schedule.h"
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
  // Both outlive it.
  RingAllReduce(
      const RingSchedule& schedule, const std::vector<Bucket>& buckets, int window);

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
  // The frame to send now, whose payload stays as it is until it has been taken by
  // the next member; none: nothing is ready. What lies in `shown` is not sent but
  // read there by the next member; null: it reads nothing.
  std::optional<Outgoing> next_frame(const SharedFloats* shown);

  // Of kData: where the payload is to go. The status names what was expected and
  // found.
  Result<float*> place_for(const FrameHeader& header);
  // The same of kSharedData, whose payload is in `memory`, which outlives this; null:
  // there is none.
  Status expect_shared_data(const FrameHeader& header, const PeerFloats* memory);
  // The payload of the last of these two calls is there and intact.
  void arrived();
  // The member before has gone on, and what it had shown was not read in time: this
  // reduction never finishes.
  bool stale() const { return stale_; }

  bool finished() const;
  // Nothing more is to come from the member before.
  bool has_arrived() const { return !send_schedule_ || send_schedule_->has_arrived(); }
  std::uint64_t digest() const { return digest_.value(); }
  std::int64_t slices_done() const;
  // A bucket of this member is what the next slice lacks.
  bool lacks_bucket() const;

 private:
  using Chunk = std::unique_ptr<float[]>;
  // What the member before has sent, or shows.
  struct Input {
    const float* floats = nullptr;
    // Of kSharedData alone.
    const PeerFloats* memory = nullptr;
    std::uint64_t lease = 0;
    float factor = 0;  // Still to be multiplied with; 0: nothing.
  };
  struct DeferredInput {
    SliceStep item;
    Chunk sum;  // None, where the part is shown.
    Input part;
  };
  Status expect(const FrameHeader& header, BucketRange& piece);
  bool can_take(const SliceStep& item) const;
  void take(const SliceStep& item, const Input& part);
  void take_block(const SliceStep& item, const BucketRange& piece, const Input& part);
  bool work_alone();
  void begin_sum(const BucketRange& piece);
  void add_to_sum(const BucketRange& piece, const Input& part);
  bool brings_zeros(const Bucket& bucket) const;
  const float* shared_input(const BucketRange& piece, const SharedFloats* shown) const;
  int given() const;
  Chunk spare_chunk();

  const RingSchedule& schedule_;
  const std::vector<Bucket>& buckets_;
  std::optional<SendSchedule> send_schedule_;  // None: the ring has one member.
  BlockDigest digest_;
  bool begun_ = false;
  std::optional<std::int64_t> step_;
  std::optional<float> factor_;
  std::int64_t alone_done_ = 0;  // Slices, where there is one member.
  mutable int given_ = 0;
  // Arriving.
  SliceStep item_;
  Chunk chunk_;
  Input part_;
  bool stale_ = false;
  std::deque<DeferredInput> held_;
  std::vector<Chunk> spare_;
};

}  // namespace sherd::ft::ring
