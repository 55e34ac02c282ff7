// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/donor_connection.h"

#include <algorithm>
#include <utility>
#include "base/check.h"
#include "base/printable.h"
#include "ft/wire/codec.h"

namespace sherd::ft::transfer {
namespace {

ErrorCode code_of(RefusalReason why) {
  switch (why) {
    case RefusalReason::kNotThere:
      return ErrorCode::kFailedPrecondition;
    case RefusalReason::kBusy:
      return ErrorCode::kUnavailable;
    case RefusalReason::kMismatch:
      break;
  }
  return ErrorCode::kPeerMismatch;
}

}  // namespace

DonorConnection::DonorConnection(
    net::Loop& loop,
    net::HostAddress donor,
    const FetchOptions& options,
    const TransferRequest& request,
    Handlers handlers)
    : loop_(loop),
      donor_(std::move(donor)),
      options_(options),
      request_(request),
      handlers_(std::move(handlers)) {}

DonorConnection::~DonorConnection() { close(); }

// The address was named by another process, and Connector throws for an address that security does
// not allow.
void DonorConnection::begin() {
  SHERD_ASSERT(loop_.in_loop());
  const Status begun =
      status_of([this] { dial_donor(); }, ErrorCode::kUnavailable);
  if (begun.ok()) {
    return;
  }
  loop_.post([weak = weak_from_this(), begun] {
    if (const auto self = weak.lock()) {
      self->fail(begun.code(), begun.message());
    }
  });
}

void DonorConnection::dial_donor() {
  dial_.emplace(
      loop_, donor_,
      net::ConnectorOptions{
          .security = options_.security,
          .connection =
              {.payload_bytes_max = kPayloadBytesMax,
               .user_timeout = options_.user_timeout},
          .timeout = options_.timeout_without_progress},
      [weak = weak_from_this()](Result<net::ConnectionHandle> result) {
        const auto self = weak.lock();
        if (self == nullptr) {
          return;
        }
        self->dial_.reset();
        if (result.ok()) {
          self->connected(std::move(result).value());
        } else {
          self->fail(result.status().code(), result.status().message());
        }
      });
}

void DonorConnection::connected(net::ConnectionHandle its) {
  connection_ = std::move(its);
  connection_->start(
      {.on_frame =
           [weak = weak_from_this()](const net::Frame& frame) {
             if (const auto self = weak.lock()) {
               self->receive(frame);
             }
           },
       .on_closed =
           [weak = weak_from_this()](const Status& reason) {
             if (const auto self = weak.lock()) {
               self->fail(reason.code(), reason.message());
             }
           }});
  connection_->send(
      static_cast<std::uint16_t>(TransferFrameType::kRequest),
      bytes_of(request_));
  watch(options_.timeout_without_progress);
}

// Checks again when the donor will have been silent for too long.
void DonorConnection::watch(Duration time) {
  silence_ = loop_.after(time, [this] {
    const bool idle = answer_ && wanted_.empty();
    const Duration silent = idle
        ? Duration(0)
        : loop_.now() - std::max(connection_->last_received(), wanted_since_);
    if (silent < options_.timeout_without_progress) {
      suspected_ = false;
      watch(options_.timeout_without_progress - silent);
      return;
    }
    // This process itself may not have run, so what has arrived meanwhile is read first.
    if (!std::exchange(suspected_, true)) {
      watch(options_.timeout_without_progress / 8);
      return;
    }
    fail(
        ErrorCode::kDeadlineExceeded,
        str("expected to hear something within ",
            seconds(options_.timeout_without_progress), " s, found silence"));
  });
}

void DonorConnection::receive(const net::Frame& frame) {
  const auto decode = [&](auto decoder, auto next) {
    const auto message = decoder(frame.payload);
    if (message.ok()) {
      next(message.value());
    } else {
      mismatch(message.status().message());
    }
  };
  const auto self = shared_from_this();  // Handlers may destroy the connection.
  const auto type = static_cast<TransferFrameType>(frame.type);
  if (type == TransferFrameType::kRefusal) {
    decode(refusal_of, [&](const Refusal& refusal) {
      fail(
          code_of(refusal.why),
          "refused: " + printable(refusal.reason, kShownBytesMax));
    });
  } else if (type == TransferFrameType::kAnswer && !answer_) {
    decode(answer_of, [&](const TransferAnswer& its) { receive_answer(its); });
  } else if (type == TransferFrameType::kChunk && !wanted_.empty()) {
    decode(chunk_of, [&](const Chunk& chunk) { receive_chunk(chunk); });
  } else if (
      type != TransferFrameType::kWaiting || (answer_ && wanted_.empty())) {
    mismatch(
        str("expected ", answer_ ? "chunks" : "an answer",
            ", found a frame of type ", frame.type));
  }
}

void DonorConnection::receive_answer(const TransferAnswer& its) {
  const bool is_sum = its.kind == RequestKind::kFetchSum;
  if (its.kind != request_.kind ||
      (request_.kind != RequestKind::kAskSnapshot &&
       (is_sum ? its.commit.base : its.state) != request_.state)) {
    mismatch("expected an answer to what was asked, found another one");
    return;
  }
  answer_ = its;
  handlers_.on_answer(*answer_);
}

void DonorConnection::receive_chunk(const Chunk& chunk) {
  const std::uint64_t place = wanted_.front();
  const std::uint64_t count =
      std::min<std::uint64_t>(answer_->chunk_bytes, answer_->bytes - place);
  if (chunk.place != place || chunk.bytes.size() != count) {
    mismatch(
        str("expected a chunk of ", count, " bytes at ", place, ", found ",
            chunk.bytes.size(), " bytes at ", chunk.place));
    return;
  }
  wanted_.pop_front();
  handlers_.on_chunk(chunk);
}

void DonorConnection::mismatch(const std::string& reason) {
  fail(ErrorCode::kPeerMismatch, reason);
}

void DonorConnection::fail(ErrorCode code, const std::string& reason) {
  if (closed_) {
    return;
  }
  const auto self = shared_from_this();
  close();
  handlers_.on_failed(Status(code, reason));
}

void DonorConnection::close() {
  SHERD_ASSERT(loop_.in_loop());
  closed_ = true;
  silence_.cancel();
  dial_.reset();
  connection_.reset();
}

void DonorConnection::request_chunk(std::uint64_t place) {
  SHERD_ASSERT(answer_ && !closed_ && wanted_.size() < kWindow);
  if (wanted_.empty()) {
    wanted_since_ = loop_.now();
  }
  wanted_.push_back(place);
  connection_->send(
      static_cast<std::uint16_t>(TransferFrameType::kChunkRequest),
      chunk_request(place));
}

}  // namespace sherd::ft::transfer
