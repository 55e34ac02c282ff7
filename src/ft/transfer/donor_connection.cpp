// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/donor_connection.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include "base/check.h"
#include "base/printable.h"
#include "base/status_from_exception.h"
#include "ft/wire/codec.h"
#include "net/connector.h"

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

struct DonorConnection::Impl
    : std::enable_shared_from_this<DonorConnection::Impl> {
  Impl(
      net::Loop& its_loop,
      net::HostAddress its_donor,
      const FetchOptions& its_options,
      const TransferRequest& its_request,
      DonorConnectionHandlers its_handlers)
      : loop(its_loop),
        donor(std::move(its_donor)),
        options(its_options),
        request(its_request),
        handlers(std::move(its_handlers)) {}

  // The address was named by another process, and Connector throws for an address that security does
  // not allow.
  void begin() {
    SHERD_ASSERT(loop.in_loop());
    const Status begun =
        status_of([this] { dial_donor(); }, ErrorCode::kUnavailable);
    if (begun.ok()) {
      return;
    }
    loop.post([weak = weak_from_this(), begun] {
      if (const auto self = weak.lock()) {
        self->fail(begun.code(), begun.message());
      }
    });
  }

  void dial_donor() {
    dial.emplace(
        loop, donor,
        net::ConnectorOptions{
            .security = options.security,
            .connection =
                {.payload_bytes_max = kPayloadBytesMax,
                 .user_timeout = options.user_timeout},
            .timeout = options.timeout_without_progress},
        [weak = weak_from_this()](
            Result<std::unique_ptr<net::Connection>> result) {
          const auto self = weak.lock();
          if (self == nullptr) {
            return;
          }
          self->dial.reset();
          if (result.ok()) {
            self->connected(std::move(result).value());
          } else {
            self->fail(result.status().code(), result.status().message());
          }
        });
  }

  void connected(std::unique_ptr<net::Connection> its) {
    connection = std::move(its);
    connection->start(
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
    connection->send(
        static_cast<std::uint16_t>(TransferFrameType::kRequest),
        bytes_of(request));
    watch(options.timeout_without_progress);
  }

  // Checks again when the donor will have been silent for too long.
  void watch(Duration time) {
    silence = loop.after(time, [this] {
      const bool idle = answer && wanted.empty();
      const Duration silent = idle
          ? Duration(0)
          : loop.now() - std::max(connection->last_received(), wanted_since);
      if (silent < options.timeout_without_progress) {
        suspected = false;
        watch(options.timeout_without_progress - silent);
        return;
      }
      // This process itself may not have run, so what has arrived meanwhile is read first.
      if (!std::exchange(suspected, true)) {
        watch(options.timeout_without_progress / 8);
        return;
      }
      fail(
          ErrorCode::kDeadlineExceeded,
          str("expected to hear something within ",
              seconds(options.timeout_without_progress), " s, found silence"));
    });
  }

  void receive(const net::Frame& frame) {
    const auto decode = [&](auto decoder, auto next) {
      const auto message = decoder(frame.payload);
      if (message.ok()) {
        next(message.value());
      } else {
        mismatch(message.status().message());
      }
    };
    const auto self =
        shared_from_this();  // Handlers may destroy the connection.
    const auto type = static_cast<TransferFrameType>(frame.type);
    if (type == TransferFrameType::kRefusal) {
      decode(refusal_of, [&](const Refusal& refusal) {
        fail(
            code_of(refusal.why),
            "refused: " + printable(refusal.reason, kShownBytesMax));
      });
    } else if (type == TransferFrameType::kAnswer && !answer) {
      decode(
          answer_of, [&](const TransferAnswer& its) { receive_answer(its); });
    } else if (type == TransferFrameType::kChunk && !wanted.empty()) {
      decode(chunk_of, [&](const Chunk& chunk) { receive_chunk(chunk); });
    } else if (
        type != TransferFrameType::kWaiting || (answer && wanted.empty())) {
      mismatch(
          str("expected ", answer ? "chunks" : "an answer",
              ", found a frame of type ", frame.type));
    }
  }

  void receive_answer(const TransferAnswer& its) {
    const bool is_sum = its.kind == RequestKind::kFetchSum;
    if (its.kind != request.kind ||
        (request.kind != RequestKind::kAskSnapshot &&
         (is_sum ? its.commit.base : its.state) != request.state)) {
      mismatch("expected an answer to what was asked, found another one");
      return;
    }
    answer = its;
    handlers.on_answer(*answer);
  }

  void receive_chunk(const Chunk& chunk) {
    const std::uint64_t place = wanted.front();
    const std::uint64_t count =
        std::min<std::uint64_t>(answer->chunk_bytes, answer->bytes - place);
    if (chunk.place != place || chunk.bytes.size() != count) {
      mismatch(
          str("expected a chunk of ", count, " bytes at ", place, ", found ",
              chunk.bytes.size(), " bytes at ", chunk.place));
      return;
    }
    wanted.pop_front();
    handlers.on_chunk(chunk);
  }

  void mismatch(const std::string& reason) {
    fail(ErrorCode::kPeerMismatch, reason);
  }

  void fail(ErrorCode code, const std::string& reason) {
    if (closed) {
      return;
    }
    const auto self = shared_from_this();
    close();
    handlers.on_failed(Status(code, reason));
  }

  void close() {
    SHERD_ASSERT(loop.in_loop());
    closed = true;
    silence.cancel();
    dial.reset();
    connection.reset();
  }

  net::Loop& loop;
  const net::HostAddress donor;
  const FetchOptions options;
  const TransferRequest request;
  const DonorConnectionHandlers handlers;
  bool closed = false;  // No handler is called any more.
  std::optional<net::Connector> dial;
  std::unique_ptr<net::Connection> connection;
  net::Timer silence;
  bool suspected = false;   // It was silent at the last check.
  Instant wanted_since{0};  // Since when something is expected.
  std::optional<TransferAnswer> answer;
  std::deque<std::uint64_t> wanted;  // The places of requested chunks.
};

DonorConnection::DonorConnection(
    net::Loop& loop,
    const net::HostAddress& donor,
    const FetchOptions& options,
    const TransferRequest& request,
    DonorConnectionHandlers handlers)
    : impl_(std::make_shared<Impl>(
          loop, donor, options, request, std::move(handlers))) {
  impl_->begin();
}

DonorConnection::~DonorConnection() { impl_->close(); }

void DonorConnection::request_chunk(std::uint64_t place) {
  SHERD_ASSERT(
      impl_->answer && !impl_->closed && impl_->wanted.size() < kWindow);
  if (impl_->wanted.empty()) {
    impl_->wanted_since = impl_->loop.now();
  }
  impl_->wanted.push_back(place);
  impl_->connection->send(
      static_cast<std::uint16_t>(TransferFrameType::kChunkRequest),
      chunk_request(place));
}

std::size_t DonorConnection::under_way() const { return impl_->wanted.size(); }

}  // namespace sherd::ft::transfer
