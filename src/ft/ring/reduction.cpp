// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/reduction.h"

#include <algorithm>
#include <utility>
#include "base/check.h"
#include "ft/ring/kernels.h"
#include "net/crc32c.h"

namespace sherd::ft::ring {
namespace {

std::size_t bytes_of(const Span& span) {
  return static_cast<std::size_t>(span.size()) * sizeof(float);
}

Status mismatch(std::string reason) {
  return {ErrorCode::kPeerMismatch, std::move(reason)};
}

}  // namespace

Reduction::Reduction(
    const Schedule& schedule, const std::vector<Bucket>& buckets, int window)
    : schedule_(schedule), buckets_(buckets), digest_(schedule.elements()) {
  if (schedule.steps() > 0) {
    course_.emplace(schedule, window);
  }
}

std::string Reduction::begin(std::int64_t step, std::optional<float> factor) {
  SHERD_ASSERT(!begun_);
  if (step_ && *step_ != step) {
    return str("expected step ", step, ", found step ", *step_);
  }
  step_ = step;
  factor_ = factor;
  begun_ = true;
  return {};
}

int Reduction::given() const {
  const auto& elements = schedule_.elements();
  while (static_cast<std::size_t>(given_) < elements.size() &&
         (elements[static_cast<std::size_t>(given_)] == 0 ||
          buckets_[static_cast<std::size_t>(given_)].given)) {
    ++given_;
  }
  return given_;
}

void Reduction::contribute(const Piece& piece, const float* sum) {
  const Bucket& bucket = buckets_[static_cast<std::size_t>(piece.bucket)];
  const auto count = piece.span.size();
  float* out = bucket.out + piece.span.begin;
  const bool zeros = !factor_ || bucket.in == nullptr;
  if (sum == nullptr && zeros) {
    std::fill_n(out, count, 0.0F);
  } else if (sum == nullptr) {
    scale(out, bucket.in + piece.span.begin, *factor_, count);
  } else if (zeros) {
    add_zeros(out, sum, count);
  } else {
    add_scaled(out, sum, bucket.in + piece.span.begin, *factor_, count);
  }
}

// ---- sending ----

std::optional<Reduction::Outgoing> Reduction::next_frame() {
  const auto item = begun_ && course_ ? course_->next_to_send(given())
                                      : std::optional<Item>();
  if (!item) {
    return std::nullopt;
  }
  const Piece piece = schedule_.sent(*item);
  if (item->step == 0) {
    contribute(piece, nullptr);
  }
  course_->sent(*item);
  Outgoing frame;
  frame.payload =
      buckets_[static_cast<std::size_t>(piece.bucket)].out + piece.span.begin;
  frame.header.kind = FrameKind::kData;
  frame.header.step = *step_;
  frame.header.slice = item->slice;
  frame.header.bucket = static_cast<std::uint32_t>(piece.bucket);
  frame.header.segment = static_cast<std::uint16_t>(piece.segment);
  frame.header.ring_step = static_cast<std::uint16_t>(item->step);
  frame.header.first_element = piece.span.begin;
  frame.header.payload_bytes = static_cast<std::uint32_t>(bytes_of(piece.span));
  frame.header.payload_checksum =
      net::crc32c(frame.payload, bytes_of(piece.span));
  return frame;
}

// ---- receiving ----

bool Reduction::can_take(const Item& item) const {
  return begun_ &&
      buckets_[static_cast<std::size_t>(schedule_.bucket_of(item.slice))].given;
}

Result<float*> Reduction::place_for(const FrameHeader& header) {
  SHERD_ASSERT(course_.has_value());
  if (step_ && header.step != *step_) {
    return mismatch(str("expected step ", *step_, ", found ", header.step));
  }
  item_ = {header.slice, header.ring_step};
  if (auto refusal = course_->refusal(item_); !refusal.empty()) {
    return mismatch(std::move(refusal));
  }
  const Piece piece = schedule_.received(item_);
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
  step_ = header.step;
  if (schedule_.reduces(item_.step)) {
    chunk_ = spare_chunk();
    return chunk_.get();
  }
  if (!can_take(item_)) {
    return mismatch(
        str("expected no sum of bucket ", piece.bucket,
            " before this member has given it, found ", text_of(piece)));
  }
  return buckets_[static_cast<std::size_t>(piece.bucket)].out +
      piece.span.begin;
}

void Reduction::arrived() {
  course_->arrived(item_);
  if (schedule_.reduces(item_.step)) {
    held_.push_back({item_, std::move(chunk_)});
    work();
    return;
  }
  // What came before on its slice, and was held for a bucket that has been given
  // since, goes before it.
  while (work()) {
  }
  take(item_, nullptr);
}

bool Reduction::work() {
  if (!course_) {
    return work_alone();
  }
  const auto first = std::find_if(
      held_.begin(), held_.end(),
      [&](const Held& held) { return can_take(held.item); });
  if (first == held_.end()) {
    return false;
  }
  take(first->item, first->sum.get());
  spare_.push_back(std::move(first->sum));
  held_.erase(first);
  return true;
}

void Reduction::take(const Item& item, const float* sum) {
  const Piece piece = schedule_.received(item);
  if (sum != nullptr) {
    contribute(piece, sum);
  }
  if (sum == nullptr || schedule_.completes(item.step)) {
    digest_.complete(
        piece.bucket, buckets_[static_cast<std::size_t>(piece.bucket)].out,
        piece.span);
  }
  course_->taken(item);
}

bool Reduction::work_alone() {
  if (!begun_ || alone_done_ == schedule_.slices() ||
      schedule_.bucket_of(alone_done_) >= given()) {
    return false;
  }
  const Piece piece = schedule_.sent({alone_done_, 0});
  contribute(piece, nullptr);
  digest_.complete(
      piece.bucket, buckets_[static_cast<std::size_t>(piece.bucket)].out,
      piece.span);
  ++alone_done_;
  return true;
}

Reduction::Chunk Reduction::spare_chunk() {
  if (spare_.empty()) {
    // Not zeroed: it is read only where bytes have come.
    return Chunk(std::make_unique_for_overwrite<float[]>(
        static_cast<std::size_t>(schedule_.shape().chunk_elements)));
  }
  Chunk chunk = std::move(spare_.back());
  spare_.pop_back();
  return chunk;
}

bool Reduction::finished() const {
  return begun_ &&
      (course_ ? course_->finished() : alone_done_ == schedule_.slices());
}

std::int64_t Reduction::slices_done() const {
  return course_ ? course_->slices_done() : alone_done_;
}

bool Reduction::lacks_bucket() const {
  const auto next = course_ ? course_->next_slice() : alone_done_;
  return next < schedule_.slices() && schedule_.bucket_of(next) >= given();
}

}  // namespace sherd::ft::ring
