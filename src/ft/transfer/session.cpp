// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/session.h"

#include <utility>
#include "base/check.h"
#include "ft/transfer/digest.h"

namespace sherd::ft::transfer {
namespace {

// What may wait for room in a socket: more than the socket's own buffer takes is
// of no use.
constexpr std::size_t kUnsentBytesMax = 2 * kChunkBytesMax;

}  // namespace

Session::Session(std::unique_ptr<net::Connection> connection)
    : connection_(std::move(connection)) {}

void Session::start(SessionHandlers handlers) {
  handlers_ = std::move(handlers);
  connection_->start(
      {.on_frame = [this](const net::Frame& frame) { heard(frame); },
       .on_closed =
           [this](const Status& /*who fetches knows*/) {
             // It may destroy this.
             const auto call = std::move(handlers_.on_closed);
             call();
           }});
}

void Session::heard(const net::Frame& frame) {
  const auto type = static_cast<FrameType>(frame.type);
  if (stage_ == Stage::kNew && type == FrameType::kRequest) {
    heard_request(frame);
  } else if (stage_ == Stage::kServed && type == FrameType::kWantChunk) {
    heard_wish(frame);
  } else {
    refuse(
        Why::kMismatch,
        str("expected ",
            stage_ == Stage::kNew ? "a request first"
                                  : "wishes for chunks after an answer",
            ", found a frame of type ", frame.type));
  }
}

void Session::heard_request(const net::Frame& frame) {
  const auto request = request_of(frame.payload);
  if (!request.ok()) {
    refuse(Why::kMismatch, request.status().message());
    return;
  }
  request_ = request.value();
  stage_ = Stage::kWaits;
  handlers_.on_request(*request_);
}

void Session::heard_wish(const net::Frame& frame) {
  const auto want = want_chunk_of(frame.payload);
  if (!want.ok()) {
    refuse(Why::kMismatch, want.status().message());
    return;
  }
  const std::uint64_t place = want.value().place;
  if (place >= bytes_->size() || place % answer_.chunk_bytes != 0) {
    refuse(
        Why::kMismatch,
        str("expected the place of a chunk of ", answer_.chunk_bytes,
            " bytes below ", bytes_->size(), ", found ", place));
    return;
  }
  if (wishes_.size() >= kWindow) {
    refuse(
        Why::kMismatch,
        str("expected at most ", kWindow, " wishes at a time, found more"));
    return;
  }
  wishes_.push_back(place);
  handlers_.on_wish();
}

void Session::tell(const StateId& state) {
  SHERD_ASSERT(stage_ == Stage::kWaits);
  stage_ = Stage::kEnded;
  send(
      FrameType::kAnswer,
      bytes_of(Answer{.kind = request_->kind, .state = state}));
  connection_->finish({ErrorCode::kAborted, "[ft] it has its answer"});
}

void Session::serve(Answer answer, std::shared_ptr<const std::string> bytes) {
  SHERD_ASSERT(stage_ == Stage::kWaits && bytes != nullptr);
  stage_ = Stage::kServed;
  answer_ = std::move(answer);
  answer_.bytes = bytes->size();
  bytes_ = std::move(bytes);
  send(FrameType::kAnswer, bytes_of(answer_));
}

void Session::say_waiting() { send(FrameType::kWaiting, ""); }

void Session::refuse(Why why, const std::string& reason) {
  if (!open()) {
    return;
  }
  stage_ = Stage::kEnded;
  wishes_.clear();
  send(FrameType::kRefusal, bytes_of(Refusal{why, reason}));
  connection_->finish({ErrorCode::kAborted, "[ft] it was refused"});
}

std::int64_t Session::step() const {
  SHERD_ASSERT(stage_ == Stage::kServed);
  return answer_.kind == Kind::kFetchSum ? answer_.commit.result.step
                                         : answer_.state.step;
}

bool Session::wants_chunk() const {
  return has_wishes() && connection_->unsent_bytes() <= kUnsentBytesMax;
}

std::size_t Session::send_chunk() {
  SHERD_ASSERT(wants_chunk());
  const std::uint64_t place = wishes_.front();
  wishes_.pop_front();
  const auto bytes =
      std::string_view(*bytes_).substr(place, answer_.chunk_bytes);
  const std::uint64_t digest = answer_.digests.empty()
      ? digest_of(bytes)
      : answer_.digests[place / answer_.chunk_bytes];
  send(
      FrameType::kChunk,
      bytes_of(Chunk{.place = place, .digest = digest, .bytes = bytes}));
  return bytes.size();
}

void Session::send(FrameType type, const std::string& payload) {
  connection_->send(static_cast<std::uint16_t>(type), payload);
}

}  // namespace sherd::ft::transfer
