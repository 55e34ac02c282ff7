// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/requester_connection.h"

#include <utility>
#include "base/check.h"
#include "base/digest.h"

namespace sherd::ft::transfer {
namespace {

// The limit of the send queue: queueing more than a socket's own buffer is useless.
constexpr std::size_t kUnsentBytesMax = 2 * kUsualChunkBytesMax;

}  // namespace

RequesterConnection::RequesterConnection(net::ConnectionHandle connection)
    : connection_(std::move(connection)) {}

void RequesterConnection::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  connection_->start(
      {.on_frame = [this](const net::Frame& frame) { receive(frame); },
       .on_closed =
           [this](const Status& /*who fetches knows*/) {
             // The call may destroy this object.
             const auto call = std::move(handlers_.on_closed);
             call();
           }});
}

void RequesterConnection::receive(const net::Frame& frame) {
  const auto type = static_cast<TransferFrameType>(frame.type);
  if (stage_ == Stage::kNew && type == TransferFrameType::kRequest) {
    receive_request(frame);
  } else if (
      stage_ == Stage::kServed && type == TransferFrameType::kChunkRequest) {
    receive_chunk_request(frame);
  } else {
    refuse(
        RefusalReason::kMismatch,
        str("expected ",
            stage_ == Stage::kNew ? "a request first"
                                  : "wishes for chunks after an answer",
            ", found a frame of type ", frame.type));
  }
}

void RequesterConnection::receive_request(const net::Frame& frame) {
  const auto request = request_of(frame.payload);
  if (!request.ok()) {
    refuse(RefusalReason::kMismatch, request.status().message());
    return;
  }
  request_ = request.value();
  stage_ = Stage::kWaits;
  handlers_.on_request(*request_);
}

void RequesterConnection::receive_chunk_request(const net::Frame& frame) {
  const auto want = chunk_request_of(frame.payload);
  if (!want.ok()) {
    refuse(RefusalReason::kMismatch, want.status().message());
    return;
  }
  const std::uint64_t place = want.value();
  if (place >= bytes_->size() || place % answer_.chunk_bytes != 0) {
    refuse(
        RefusalReason::kMismatch,
        str("expected the place of a chunk of ", answer_.chunk_bytes,
            " bytes below ", bytes_->size(), ", found ", place));
    return;
  }
  if (chunk_requests_.size() >= kWindow) {
    refuse(
        RefusalReason::kMismatch,
        str("expected at most ", kWindow, " wishes at a time, found more"));
    return;
  }
  chunk_requests_.push_back(place);
  handlers_.on_chunk_requested();
}

void RequesterConnection::tell(const StateId& state) {
  SHERD_ASSERT(stage_ == Stage::kWaits);
  stage_ = Stage::kEnded;
  send(
      TransferFrameType::kAnswer,
      bytes_of(TransferAnswer{.kind = request_->kind, .state = state}));
  connection_->finish({ErrorCode::kAborted, "[ft] it has its answer"});
}

void RequesterConnection::serve(
    TransferAnswer answer, std::shared_ptr<const std::string> bytes) {
  SHERD_ASSERT(stage_ == Stage::kWaits && bytes != nullptr);
  stage_ = Stage::kServed;
  answer_ = std::move(answer);
  answer_.bytes = bytes->size();
  bytes_ = std::move(bytes);
  send(TransferFrameType::kAnswer, bytes_of(answer_));
}

void RequesterConnection::send_waiting() {
  send(TransferFrameType::kWaiting, "");
}

void RequesterConnection::refuse(RefusalReason why, const std::string& reason) {
  if (!open()) {
    return;
  }
  stage_ = Stage::kEnded;
  bytes_.reset();
  chunk_requests_.clear();
  send(TransferFrameType::kRefusal, bytes_of(Refusal{why, reason}));
  connection_->finish({ErrorCode::kAborted, "[ft] it was refused"});
}

std::int64_t RequesterConnection::step() const {
  SHERD_ASSERT(stage_ == Stage::kServed);
  return answer_.kind == RequestKind::kFetchSum ? answer_.commit.result.step
                                                : answer_.state.step;
}

bool RequesterConnection::can_send_chunk() const {
  return has_chunk_requests() && connection_->unsent_bytes() <= kUnsentBytesMax;
}

std::size_t RequesterConnection::send_chunk(Instant now) {
  SHERD_ASSERT(can_send_chunk());
  last_sent_ = now;
  const std::uint64_t place = chunk_requests_.front();
  chunk_requests_.pop_front();
  const auto bytes =
      std::string_view(*bytes_).substr(place, answer_.chunk_bytes);
  const std::uint64_t digest = answer_.digests.empty()
      ? digest_of(bytes)
      : answer_.digests[place / answer_.chunk_bytes];
  send(
      TransferFrameType::kChunk,
      bytes_of(Chunk{.place = place, .digest = digest, .bytes = bytes}));
  return bytes.size();
}

void RequesterConnection::send(
    TransferFrameType type, const std::string& payload) {
  connection_->send(static_cast<std::uint16_t>(type), payload);
}

}  // namespace sherd::ft::transfer
