// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/ring_all_reduce.h"

#include <algorithm>
#include <utility>
#include "base/check.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "ft/ring/kernels.h"

namespace sherd::ft::ring {
namespace {

using Use = ReceiveStep::Use;

std::size_t bytes_of(const FloatRange& span) {
  return static_cast<std::size_t>(span.size()) * sizeof(float);
}

void set_place(
    FrameHeader& header, const SliceStep& item, const BucketRange& piece) {
  header.slice = item.slice;
  header.bucket = static_cast<std::uint32_t>(piece.bucket);
  header.segment = static_cast<std::uint16_t>(piece.segment);
  header.ring_step = static_cast<std::uint16_t>(item.step);
  header.first_element = piece.span.begin;
  header.payload_bytes = static_cast<std::uint32_t>(bytes_of(piece.span));
}

Status mismatch(std::string reason) {
  return {ErrorCode::kPeerMismatch, std::move(reason)};
}

}  // namespace

RingAllReduce::RingAllReduce(
    const ReduceSchedule& schedule,
    const std::vector<Bucket>& buckets,
    int slots)
    : schedule_(schedule),
      buckets_(buckets),
      send_schedule_(schedule, schedule.window(slots)),
      digest_(schedule.elements()),
      coming_(schedule.senders().size()) {}

std::string RingAllReduce::begin(
    std::int64_t step, std::optional<float> factor) {
  SHERD_ASSERT(!begun_);
  if (step_ && *step_ != step) {
    return str("expected step ", step, ", found step ", *step_);
  }
  step_ = step;
  factor_ = factor;
  begun_ = true;
  return {};
}

int RingAllReduce::given() const {
  const auto& elements = schedule_.elements();
  while (given_ < elements.size() &&
         (elements[given_] == 0 || buckets_[given_].given)) {
    ++given_;
  }
  return static_cast<int>(given_);
}

bool RingAllReduce::brings_zeros(const Bucket& bucket) const {
  return !factor_ || bucket.in == nullptr;
}

void RingAllReduce::begin_sum(const BucketRange& piece) {
  const Bucket& bucket = bucket_of(piece);
  float* out = sum_of(piece);
  if (brings_zeros(bucket)) {
    std::fill_n(out, piece.span.size(), 0.0F);
  } else {
    scale(out, bucket.in + piece.span.begin, *factor_, piece.span.size());
  }
}

void RingAllReduce::add_own_part(const BucketRange& piece, const Input& part) {
  const Bucket& bucket = bucket_of(piece);
  const auto count = piece.span.size();
  float* out = sum_of(piece);
  if (brings_zeros(bucket)) {
    scale_and_add_zeros(out, part.floats, part.factor, count);
  } else {
    add_two_scaled(
        out, part.floats, part.factor, bucket.in + piece.span.begin, *factor_,
        count);
  }
}

// ---- sending ----

// The member's own input, if the receiver can read and scale it in place, which saves a pass over
// memory; otherwise null.
const float* RingAllReduce::shared_input(
    const BucketRange& piece, const SharedFloats* memory) const {
  const Bucket& bucket = bucket_of(piece);
  if (memory == nullptr || brings_zeros(bucket) || !(*factor_ > 0)) {
    return nullptr;
  }
  const float* part = bucket.in + piece.span.begin;
  const auto count = static_cast<std::size_t>(piece.span.size());
  return memory->place_of(part, count) ? part : nullptr;
}

std::optional<RingAllReduce::Outgoing> RingAllReduce::next_frame(
    const Receivers& receivers) {
  const auto item = begun_
      ? send_schedule_.next_to_send(given(), receivers.free)
      : std::nullopt;
  if (!item) {
    return std::nullopt;
  }
  const SendStep& send = schedule_.send(*item);
  const BucketRange piece = schedule_.sent(*item);
  const auto to = static_cast<std::size_t>(send.to);
  const SharedFloats* memory =
      receivers.read_memory[to] ? receivers.memory : nullptr;
  Outgoing frame;
  frame.to = send.to;
  FrameHeader& header = frame.header;
  if (send.begins_sum) {
    frame.payload = shared_input(piece, memory);
    header.factor = frame.payload == nullptr ? 0.0F : *factor_;
  }
  if (frame.payload == nullptr) {
    frame.payload = sum_of(piece);
    if (send.begins_sum) {
      begin_sum(piece);
    }
  }
  send_schedule_.sent(*item);
  header.step = *step_;
  set_place(header, {item->slice, send.step}, piece);
  const auto place = memory == nullptr
      ? std::nullopt
      : memory->place_of(
            frame.payload, static_cast<std::size_t>(piece.span.size()));
  if (place) {
    header.kind = FrameKind::kSharedData;
    header.place = *place;
    header.lease = memory->lease();
  } else {
    // Only data that are sent can be damaged in transit.
    header.payload_checksum = crc32c(frame.payload, bytes_of(piece.span));
  }
  return frame;
}

// ---- receiving ----

// Whether this member has begun and given the bucket.
bool RingAllReduce::can_take(const SliceStep& item) const {
  return begun_ &&
      buckets_[static_cast<std::size_t>(schedule_.bucket_of(item.slice))].given;
}

Status RingAllReduce::expect(
    const FrameHeader& header, int sender, BucketRange& piece) {
  if (step_ && header.step != *step_) {
    return mismatch(str("expected step ", *step_, ", found ", header.step));
  }
  const SliceStep item{header.slice, header.ring_step};
  if (auto refusal = send_schedule_.refusal(item, sender); !refusal.empty()) {
    return mismatch(std::move(refusal));
  }
  piece = schedule_.received(item);
  if (header.bucket != static_cast<std::uint32_t>(piece.bucket) ||
      header.segment != piece.segment ||
      header.first_element != piece.span.begin ||
      header.payload_bytes != bytes_of(piece.span)) {
    return mismatch(
        str("expected ", text_of(piece), " in segment ", piece.segment,
            ", found ", header.payload_bytes / sizeof(float), " elements from ",
            header.first_element, " of bucket ", header.bucket, " in segment ",
            header.segment));
  }
  if (schedule_.receive(item).use == Use::kCopy && !can_take(item)) {
    return mismatch(
        str("expected no sum of bucket ", piece.bucket,
            " before this member has given it, found ", text_of(piece)));
  }
  if (!step_) {
    step_ = header.step;
    told_by_ = sender;
  }
  coming_[static_cast<std::size_t>(sender)].item = item;
  return {};
}

Result<float*> RingAllReduce::place_for(const FrameHeader& header, int sender) {
  BucketRange piece;
  SHERD_RETURN_IF_FAILED(expect(header, sender, piece));
  DeferredInput& coming = coming_[static_cast<std::size_t>(sender)];
  float* place = nullptr;
  if (schedule_.receive(coming.item).use == Use::kCopy) {
    place = sum_of(piece);
  } else {
    coming.sum = spare_chunk();
    place = coming.sum.get();
  }
  coming.part = {.floats = place};
  return place;
}

Status RingAllReduce::expect_shared_data(
    const FrameHeader& header, int sender, const PeerFloats* memory) {
  BucketRange piece;
  SHERD_RETURN_IF_FAILED(expect(header, sender, piece));
  const float* floats = memory == nullptr
      ? nullptr
      : memory->at(header.place, static_cast<std::size_t>(piece.span.size()));
  if (floats == nullptr || header.lease == 0) {
    return mismatch(
        str("expected ", text_of(piece), " in shared memory, found place ",
            header.place, " under lease ", header.lease));
  }
  DeferredInput& coming = coming_[static_cast<std::size_t>(sender)];
  if (header.factor > 0 && !schedule_.receive(coming.item).begins_sum) {
    return mismatch(str(
        "expected a sum at step ", coming.item.step, ", found a part of it"));
  }
  coming.part = {
      floats, memory, header.lease, header.factor > 0 ? header.factor : 1.0F};
  return {};
}

void RingAllReduce::arrived(int sender) {
  DeferredInput& coming = coming_[static_cast<std::size_t>(sender)];
  const SliceStep item = coming.item;
  send_schedule_.arrived(item);
  if (schedule_.receive(item).use != Use::kCopy) {
    held_.push_back(std::move(coming));
    work();
    return;
  }
  // Earlier inputs of the slice come first; they waited for a bucket that has been given since.
  while (work()) {
  }
  if (!stale_) {
    take(item, coming.part);
  }
}

bool RingAllReduce::work() {
  if (schedule_.senders().empty()) {
    return work_alone();
  }
  const auto first =
      std::ranges::find_if(held_, [&](const DeferredInput& held) {
        return can_take(held.item) && send_schedule_.may_take(held.item);
      });
  if (first == held_.end() || stale_) {
    return false;
  }
  take(first->item, first->part);
  if (first->sum) {
    spare_.push_back(std::move(first->sum));
  }
  held_.erase(first);
  return true;
}

// Works in blocks of the digest, so that results are hashed while they are in the cache.
void RingAllReduce::take(const SliceStep& item, const Input& part) {
  BucketRange piece = schedule_.received(item);
  const FloatRange span = piece.span;
  Input of_block = part;
  while (piece.span.begin < span.end) {
    const auto block_end =
        (piece.span.begin / kDigestBlockElements + 1) * kDigestBlockElements;
    piece.span.end = std::min(block_end, span.end);
    take_block(item, piece, of_block);
    of_block.floats += piece.span.size();
    piece.span.begin = piece.span.end;
  }
  // Checked after everything has been read, when nothing of it has been sent on yet.
  if (part.memory != nullptr && !part.memory->holds(part.lease)) {
    stale_ = schedule_.receive(item).from;
    return;
  }
  send_schedule_.taken(item);
}

void RingAllReduce::take_block(
    const SliceStep& item, const BucketRange& piece, const Input& part) {
  const ReceiveStep& receive = schedule_.receive(item);
  if (receive.use == Use::kAddOwn) {
    add_own_part(piece, part);
  } else if (receive.use == Use::kAdd) {
    add_scaled_to(sum_of(piece), part.floats, part.factor, piece.span.size());
  } else if (part.memory != nullptr) {
    std::copy_n(part.floats, piece.span.size(), sum_of(piece));
  }
  if (receive.use == Use::kCopy || receive.completes) {
    digest_.complete(piece.bucket, bucket_of(piece).out, piece.span);
  }
}

bool RingAllReduce::work_alone() {
  if (!begun_ || finished() || lacks_bucket()) {
    return false;
  }
  const BucketRange piece = schedule_.own(slices_done());
  begin_sum(piece);
  digest_.complete(piece.bucket, bucket_of(piece).out, piece.span);
  send_schedule_.done_alone();
  return true;
}

RingAllReduce::Chunk RingAllReduce::spare_chunk() {
  if (spare_.empty()) {
    // Not zeroed, since it is read only where bytes have been received.
    return Chunk(std::make_unique_for_overwrite<float[]>(
        static_cast<std::size_t>(schedule_.options().chunk_elements)));
  }
  Chunk chunk = std::move(spare_.back());
  spare_.pop_back();
  return chunk;
}

bool RingAllReduce::lacks_bucket() const {
  const auto next = send_schedule_.next_slice();
  return next < schedule_.slices() && schedule_.bucket_of(next) >= given();
}

}  // namespace sherd::ft::ring
