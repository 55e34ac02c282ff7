// SPDX-License-Identifier: Apache-2.0
//
// RingAllReduce is one all-reduce over the buckets at one member, in whatever shape its schedule has:
// it does on the buckets' floats what SendSchedule allows, and knows no sockets. It may receive
// before its member has begun. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "ft/ring/block_digest.h"
#include "ft/ring/frame.h"
#include "ft/ring/reduce_schedule.h"
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
  // `schedule` and `buckets` outlive it. `slots` are those of a ring.
  RingAllReduce(
      const ReduceSchedule& schedule,
      const std::vector<Bucket>& buckets,
      int slots);

  // `factor` scales this member's floats; none: it contributes zeros. Returns why it cannot begin:
  // others have begun another step, as told_by() has said first.
  std::string begin(std::int64_t step, std::optional<float> factor);
  bool begun() const { return begun_; }
  std::int64_t step() const { return *step_; }  // REQUIRES: begun().
  // An index into the schedule's senders.
  int told_by() const { return told_by_; }

  // Processes one chunk that waited for begin() or a bucket; false: there is none.
  bool work();

  // The receivers of the schedule, by their index: those that a frame can be sent to now, and those
  // that read in place what lies in `memory`, so that it is not sent.
  struct Receivers {
    std::vector<bool> free;
    std::vector<bool> read_memory;
    const SharedFloats* memory = nullptr;
  };
  struct Outgoing {
    int to = 0;  // An index into the schedule's receivers.
    FrameHeader header;
    const float* payload = nullptr;
  };
  // The frame to send now; none: nothing is ready. Its payload stays as it is until its receiver has
  // taken it.
  std::optional<Outgoing> next_frame(const Receivers& receivers);

  // For kData from one of the schedule's senders: where the payload goes. The status names what was
  // expected and found. One frame at a time comes from each sender.
  Result<float*> place_for(const FrameHeader& header, int sender);
  // The same for kSharedData, whose payload is in `memory`, which outlives this; null: there is
  // none.
  Status expect_shared_data(
      const FrameHeader& header, int sender, const PeerFloats* memory);
  // The payload of the last of these two calls for this sender is there and intact.
  void arrived(int sender);
  // The sender whose lease ended before its data were read: this reduction never finishes.
  std::optional<int> stale() const { return stale_; }

  bool finished() const;
  // The whole sum is here; other members may still lack some of it.
  bool complete() const {
    return begun_ && !stale_ &&
        (send_schedule_ ? send_schedule_->has_taken() : finished());
  }
  // This sender has sent everything.
  bool has_arrived_from(int sender) const {
    return send_schedule_->has_arrived_from(sender);
  }
  // The sender whose frames are waited for; none: all have come, or this member is alone.
  std::optional<int> waits_for() const {
    return send_schedule_ ? send_schedule_->waits_for() : std::nullopt;
  }
  std::uint64_t digest() const { return digest_.value(); }
  std::int64_t slices_done() const;
  // The next slice waits for a bucket of this member.
  bool lacks_bucket() const;

 private:
  using Chunk = std::unique_ptr<float[]>;
  // What a sender has sent or shares.
  struct Input {
    const float* floats = nullptr;
    // For kSharedData only.
    const PeerFloats* memory = nullptr;
    std::uint64_t lease = 0;
    float factor = 0;  // Still to be applied; 0: none.
  };
  struct DeferredInput {
    SliceStep item;
    Chunk sum;  // None for shared data, and for complete sums.
    Input part;
  };
  Status expect(const FrameHeader& header, int sender, BucketRange& piece);
  bool can_take(const SliceStep& item) const;
  void take(const SliceStep& item, const Input& part);
  void take_block(
      const SliceStep& item, const BucketRange& piece, const Input& part);
  bool work_alone();
  void begin_sum(const BucketRange& piece);
  void add_own_part(const BucketRange& piece, const Input& part);
  void add_to_sum(const BucketRange& piece, const Input& part);
  bool brings_zeros(const Bucket& bucket) const;
  const float* shared_input(
      const BucketRange& piece, const SharedFloats* memory) const;
  int given() const;
  Chunk spare_chunk();

  const ReduceSchedule& schedule_;
  const std::vector<Bucket>& buckets_;
  std::optional<SendSchedule> send_schedule_;  // None with one member.
  BlockDigest digest_;
  bool begun_ = false;
  std::optional<std::int64_t> step_;
  int told_by_ = 0;
  std::optional<float> factor_;
  std::int64_t alone_done_ = 0;  // Slices, with one member.
  mutable int given_ = 0;
  std::vector<DeferredInput> coming_;  // The chunks being received, by sender.
  std::optional<int> stale_;
  std::deque<DeferredInput> held_;
  std::vector<Chunk> spare_;
};

}  // namespace sherd::ft::ring
