// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/fetch.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include "base/caught.h"
#include "base/check.h"
#include "ft/transfer/digest.h"
#include "ft/transfer/transfer_messages.h"
#include "net/dial.h"

namespace sherd::ft {

using namespace transfer;  // NOLINT(google-build-using-namespace): its own.

namespace {

struct Fetched {
  Answer answer;
  std::string bytes;
};

ErrorCode code_of(Why why) {
  switch (why) {
    case Why::kNotThere:
      return ErrorCode::kFailedPrecondition;
    case Why::kBusy:
      return ErrorCode::kUnavailable;
    case Why::kMismatch:
      break;
  }
  return ErrorCode::kPeerMismatch;
}

std::string text_of(const Request& request) {
  switch (request.kind) {
    case Kind::kAskSnapshot:
      return "a snapshot";
    case Kind::kFetchSnapshot:
      return str("the state of ", text_of(request.state));
    case Kind::kFetchSum:
      break;
  }
  return str("the sum after ", text_of(request.state));
}

Request request_for(
    Kind kind, const FetchOptions& options, const StateId& state) {
  const auto wait = std::clamp<std::int64_t>(
      std::chrono::ceil<std::chrono::milliseconds>(options.snapshot_timeout)
          .count(),
      0, std::numeric_limits<std::uint32_t>::max());
  return {
      .kind = kind,
      .run = options.run,
      .shard_rank = static_cast<std::uint32_t>(options.shard_rank),
      .state = state,
      .wait_ms_max = static_cast<std::uint32_t>(wait)};
}

}  // namespace

// Dials, asks, and has a few chunks under way until all are there. A chunk that is
// damaged is asked for again, with those behind it: then they still come in order.
struct Fetch::Impl : std::enable_shared_from_this<Fetch::Impl> {
  using Done = std::function<void(Result<Fetched>)>;

  Impl(
      net::Loop& its_loop,
      net::HostAddress its_donor,
      const FetchOptions& its_options,
      const Request& its_request,
      Done call)
      : loop(its_loop),
        donor(std::move(its_donor)),
        options(its_options),
        request(its_request),
        done(std::move(call)) {}

  void begin();
  void dial_donor();
  void connected(std::unique_ptr<net::Connection> its);
  void watch(Duration time);

  void heard(const net::Frame& frame);
  void heard_answer(const Answer& its);
  Status take_room();
  void heard_chunk(const Chunk& chunk);
  void heard_whole(const Whole& whole);
  void want_more();
  void send(FrameType type, const std::string& payload);

  void mismatch(const std::string& reason);
  void fail(ErrorCode code, const std::string& reason);
  void finish(Result<Fetched> result);
  void cancel();

  net::Loop& loop;
  const net::HostAddress donor;
  const FetchOptions options;
  const Request request;
  Done done;  // Empty: called, or not to be called any more.
  std::optional<net::Dial> dial;
  std::unique_ptr<net::Connection> connection;
  net::Timer silence;

  std::optional<Answer> answer;
  std::string bytes;          // That came in order and are checked.
  RunningDigest digest;       // Of them.
  std::uint64_t wanted = 0;   // Asked for up to here.
  std::size_t under_way = 0;  // Chunks that were asked for and did not come.
  std::size_t to_drop = 0;    // The first of them are asked for again.
  std::optional<std::uint64_t> damaged;  // The last place that was.
};

void Fetch::Impl::begin() {
  SHERD_ASSERT(loop.in_loop() && done);
  const Status begun = status_of(
      [this]() -> Status {
        dial_donor();
        return {};
      },
      ErrorCode::kUnavailable);
  if (begun.ok()) {
    return;
  }
  loop.post([weak = weak_from_this(), begun] {
    if (const auto self = weak.lock()) {
      self->fail(begun.code(), begun.message());
    }
  });
}

void Fetch::Impl::dial_donor() {
  dial.emplace(
      loop, donor,
      net::DialOptions{
          .security = options.security,
          .connection = {.payload_bytes_max = kPayloadBytesMax},
          .timeout = options.timeout_without_progress},
      [weak =
           weak_from_this()](Result<std::unique_ptr<net::Connection>> result) {
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

void Fetch::Impl::connected(std::unique_ptr<net::Connection> its) {
  connection = std::move(its);
  connection->start(
      {.on_frame =
           [weak = weak_from_this()](const net::Frame& frame) {
             if (const auto self = weak.lock()) {
               self->heard(frame);
             }
           },
       .on_closed =
           [weak = weak_from_this()](const Status& reason) {
             if (const auto self = weak.lock()) {
               self->fail(reason.code(), reason.message());
             }
           }});
  send(FrameType::kRequest, bytes_of(request));
  watch(options.timeout_without_progress);
}

// Looks again when the donor would have been silent for too long.
void Fetch::Impl::watch(Duration time) {
  silence = loop.after(time, [this] {
    const Duration silent = loop.now() - connection->last_heard();
    if (silent < options.timeout_without_progress) {
      watch(options.timeout_without_progress - silent);
      return;
    }
    fail(
        ErrorCode::kDeadlineExceeded,
        str("expected to hear something within ",
            seconds(options.timeout_without_progress), " s, found silence"));
  });
}

void Fetch::Impl::heard(const net::Frame& frame) {
  const auto decode = [&](auto decoder, auto next) {
    const auto message = decoder(frame.payload);
    if (message.ok()) {
      next(message.value());
    } else {
      mismatch(message.status().message());
    }
  };
  const auto type = static_cast<FrameType>(frame.type);
  if (type == FrameType::kRefusal) {
    decode(refusal_of, [&](const Refusal& refusal) {
      fail(code_of(refusal.why), "refused: " + refusal.reason);
    });
  } else if (type == FrameType::kAnswer && !answer) {
    decode(answer_of, [&](const Answer& its) { heard_answer(its); });
  } else if (type == FrameType::kChunk && under_way > 0) {
    decode(chunk_of, [&](const Chunk& chunk) { heard_chunk(chunk); });
  } else if (
      type == FrameType::kWhole && answer && bytes.size() == answer->bytes) {
    decode(whole_of, [&](const Whole& whole) { heard_whole(whole); });
  } else if (type != FrameType::kWaiting || answer) {
    mismatch(
        str("expected ", answer ? "chunks" : "an answer",
            ", found a frame of type ", frame.type));
  }
}

void Fetch::Impl::heard_answer(const Answer& its) {
  const bool is_sum = its.kind == Kind::kFetchSum;
  if (its.kind != request.kind ||
      (request.kind != Kind::kAskSnapshot &&
       (is_sum ? its.commit.base : its.state) != request.state)) {
    mismatch("expected an answer to what was asked, found another one");
    return;
  }
  answer = its;
  if (request.kind == Kind::kAskSnapshot) {
    finish(Fetched{its, {}});
    return;
  }
  if (const Status room = take_room(); !room.ok()) {
    fail(room.code(), room.message());
    return;
  }
  want_more();
}

// The system gives memory as it is written, so that a donor that does not send
// what it has announced costs none, and nothing is moved while it grows.
Status Fetch::Impl::take_room() {
  if (answer->bytes > options.bytes_max) {
    return {
        ErrorCode::kPeerMismatch,
        str("expected at most ", options.bytes_max, " bytes, found ",
            answer->bytes)};
  }
  return status_of(
      [this]() -> Status {
        bytes.reserve(answer->bytes);
        return {};
      },
      ErrorCode::kUnavailable,
      str("no memory for ", answer->bytes, " bytes: "));
}

void Fetch::Impl::want_more() {
  while (under_way < kWindow && wanted < answer->bytes) {
    send(FrameType::kWantChunk, bytes_of(WantChunk{wanted}));
    wanted +=
        std::min<std::uint64_t>(answer->chunk_bytes, answer->bytes - wanted);
    ++under_way;
  }
  if (bytes.size() == answer->bytes) {
    send(FrameType::kWantWhole, "");
  }
}

void Fetch::Impl::heard_chunk(const Chunk& chunk) {
  --under_way;
  if (to_drop > 0) {
    --to_drop;
    want_more();
    return;
  }
  const std::uint64_t place = bytes.size();
  const std::uint64_t count =
      std::min<std::uint64_t>(answer->chunk_bytes, answer->bytes - place);
  if (chunk.place != place || chunk.bytes.size() != count) {
    mismatch(
        str("expected a chunk of ", count, " bytes at ", place, ", found ",
            chunk.bytes.size(), " bytes at ", chunk.place));
    return;
  }
  if (digest_of(chunk.bytes) == chunk.digest) {
    bytes.append(chunk.bytes);
    digest.add(chunk.bytes);
  } else if (damaged == place) {
    mismatch(
        str("expected chunks that fit their digests, found a damaged one at ",
            place, ", twice"));
    return;
  } else {
    damaged = place;
    to_drop = under_way;
    wanted = place;
  }
  want_more();
}

void Fetch::Impl::heard_whole(const Whole& whole) {
  if (whole.digest != digest.value()) {
    mismatch(
        str("expected ", bytes.size(), " bytes of digest ", whole.digest,
            ", found ", digest.value()));
    return;
  }
  finish(Fetched{*answer, std::move(bytes)});
}

void Fetch::Impl::send(FrameType type, const std::string& payload) {
  connection->send(static_cast<std::uint16_t>(type), payload);
}

void Fetch::Impl::mismatch(const std::string& reason) {
  fail(ErrorCode::kPeerMismatch, reason);
}

void Fetch::Impl::fail(ErrorCode code, const std::string& reason) {
  finish(Status(
      code,
      str("[ft] cannot fetch ", text_of(request), " from ", donor.text(), ": ",
          reason)));
}

void Fetch::Impl::finish(Result<Fetched> result) {
  // `call` may destroy the Fetch.
  const auto self = shared_from_this();
  const Done call = std::exchange(done, nullptr);
  cancel();
  if (call) {
    call(std::move(result));
  }
}

void Fetch::Impl::cancel() {
  SHERD_ASSERT(loop.in_loop());
  done = nullptr;
  silence.cancel();
  dial.reset();
  connection.reset();
}

Fetch::Fetch(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->begin();
}

Fetch::~Fetch() { impl_->cancel(); }

std::unique_ptr<Fetch> ask_snapshot(
    net::Loop& loop,
    const net::HostAddress& donor,
    const FetchOptions& options,
    std::function<void(Result<StateId>)> done) {
  return std::make_unique<Fetch>(std::make_shared<Fetch::Impl>(
      loop, donor, options, request_for(Kind::kAskSnapshot, options, {}),
      [done = std::move(done)](const Result<Fetched>& result) {
        done(
            result.ok() ? Result<StateId>(result.value().answer.state)
                        : result.status());
      }));
}

std::unique_ptr<Fetch> fetch_snapshot(
    net::Loop& loop,
    const net::HostAddress& donor,
    const FetchOptions& options,
    const StateId& state,
    std::function<void(Result<std::string>)> done) {
  return std::make_unique<Fetch>(std::make_shared<Fetch::Impl>(
      loop, donor, options, request_for(Kind::kFetchSnapshot, options, state),
      [done = std::move(done)](Result<Fetched> result) {
        done(
            result.ok() ? Result<std::string>(std::move(result).value().bytes)
                        : result.status());
      }));
}

std::unique_ptr<Fetch> fetch_sum(
    net::Loop& loop,
    const net::HostAddress& donor,
    const FetchOptions& options,
    const StateId& base,
    std::function<void(Result<FetchedSum>)> done) {
  return std::make_unique<Fetch>(std::make_shared<Fetch::Impl>(
      loop, donor, options, request_for(Kind::kFetchSum, options, base),
      [done = std::move(done)](Result<Fetched> result) {
        if (!result.ok()) {
          done(result.status());
          return;
        }
        Fetched fetched = std::move(result).value();
        done(FetchedSum{fetched.answer.commit, std::move(fetched.bytes)});
      }));
}

}  // namespace sherd::ft
