// SPDX-License-Identifier: Apache-2.0
//
// RingAllReduce is one all-reduce over the buckets at one member, in whatever shape its schedule
// has: it carries out on the buckets' floats what SendSchedule allows, and knows no sockets. It may
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
#include "ft/ring/reduce_schedule.h"
#include "ft/ring/send_schedule.h"
#include "ft/ring/shared_floats.h"

namespace sherd::ft::ring {

class RingAllReduce {
 public:
  // This member's part of a bucket.
  struct Bucket {
    bool given = false;
    const float* in = nullptr;  // Null stands for zeros.
    float* out = nullptr;
  };

  // `schedule` and `buckets` must outlive it. `slots` is that of a ring.
  RingAllReduce(
      const ReduceSchedule& schedule,
      const std::vector<Bucket>& buckets,
      int slots);

  // `factor` scales this member's floats; without it, the member contributes zeros. Returns why it
  // cannot begin: others have begun another step, as the sender told_by() was the first to say.
  std::string begin(std::int64_t step, std::optional<float> factor);
  bool begun() const { return begun_; }
  std::int64_t step() const { return *step_; }  // REQUIRES: begun().
  // An index into the schedule's senders.
  int told_by() const { return told_by_; }

  // Processes one chunk that waited for begin() or a bucket; returns false if there is none.
  bool work();

  // The schedule's receivers, by index: to which of them a frame can be sent now, and which read in
  // place what lies in `memory`, so that it need not be sent.
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
  // The frame to send now, or nullopt if none is ready. Its payload stays unchanged until its
  // receiver has taken it.
  std::optional<Outgoing> next_frame(const Receivers& receivers);

  // For kData from one of the schedule's senders: where the payload goes. The status says what was
  // expected and found. Each sender sends one frame at a time.
  Result<float*> place_for(const FrameHeader& header, int sender);
  // The same for kSharedData, whose payload is in `memory`, which must outlive this; null if there
  // is none.
  Status expect_shared_data(
      const FrameHeader& header, int sender, const PeerFloats* memory);
  // The payload announced by the last of these two calls for this sender has arrived intact.
  void arrived(int sender);
  // A sender whose lease ended before its data were read: this reduction will never finish.
  std::optional<int> stale() const { return stale_; }

  bool finished() const { return begun_ && send_schedule_.finished(); }
  // The whole sum is here, although other members may still lack some of it.
  bool complete() const {
    return begun_ && !stale_ && send_schedule_.has_taken();
  }
  // Whether this sender has sent everything.
  bool has_arrived_from(int sender) const {
    return send_schedule_.has_arrived_from(sender);
  }
  // The sender whose frames this member waits for; nullopt if all have arrived.
  std::optional<int> waits_for() const { return send_schedule_.waits_for(); }
  std::uint64_t digest() const { return digest_.value(); }
  std::int64_t slices_done() const { return send_schedule_.slices_done(); }
  // Whether the next slice waits for a bucket of this member.
  bool lacks_bucket() const;

 private:
  using Chunk = std::unique_ptr<float[]>;
  // What a sender has sent or shares.
  struct Input {
    const float* floats = nullptr;
    // For kSharedData only.
    const PeerFloats* memory = nullptr;
    std::uint64_t lease = 0;
    float factor = 1;  // Still has to be applied.
  };
  struct DeferredInput {
    SliceStep item;
    Chunk sum;  // Unused for shared data and for complete sums.
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
  bool brings_zeros(const Bucket& bucket) const;
  const float* shared_input(
      const BucketRange& piece, const SharedFloats* memory) const;
  int given() const;
  const Bucket& bucket_of(const BucketRange& piece) const {
    return buckets_[static_cast<std::size_t>(piece.bucket)];
  }
  // The place of the piece's sum.
  float* sum_of(const BucketRange& piece) const {
    return bucket_of(piece).out + piece.span.begin;
  }
  Chunk spare_chunk();

  const ReduceSchedule& schedule_;
  const std::vector<Bucket>& buckets_;
  SendSchedule send_schedule_;
  BlockDigest digest_;
  bool begun_ = false;
  std::optional<std::int64_t> step_;
  int told_by_ = 0;
  std::optional<float> factor_;
  mutable std::size_t given_ = 0;
  std::vector<DeferredInput> coming_;  // The chunks being received, by sender.
  std::optional<int> stale_;
  std::deque<DeferredInput> held_;
  std::vector<Chunk> spare_;
};

}  // namespace sherd::ft::ring
