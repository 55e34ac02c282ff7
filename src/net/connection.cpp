// SPDX-License-Identifier: Apache-2.0
#include "net/connection.h"

#include <iterator>
#include <utility>
#include "base/check.h"

namespace sherd::net {
namespace {

// Buffers for reads grow as reads fill them: of the thousands of connections of a leader or a
// coordinator, most carry short frames.
constexpr std::size_t kReadBytesMin = std::size_t{4} << 10U;
constexpr std::size_t kReadBytesMax = std::size_t{64} << 10U;
// A buffer that grew above this size for one large frame is freed.
constexpr std::size_t kKeptBytes = std::size_t{1} << 20U;
// The limit of a greeting: longer than any greeting, so that a wrong one can be reported, but
// short, so that unknown clients do not fill the memory.
constexpr std::size_t kGreetingBytesMax = 64;

}  // namespace

Connection::Connection(
    Loop& loop,
    std::unique_ptr<Channel> channel,
    Side side,
    std::string peer,
    const ConnectionOptions& options)
    : loop_(loop),
      channel_(std::move(channel)),
      side_(side),
      peer_(std::move(peer)),
      options_(options),
      buffer_(kReadBytesMin),
      reader_(
          options.received_bytes_max > 0 ? options.received_bytes_max
                                         : options.payload_bytes_max),
      last_received_(loop.now()) {
  reader_.limit_first(kGreetingBytesMax);
}

void Connection::greet(
    Duration timeout, std::function<void(const Status&)> done) {
  SHERD_ASSERT(loop_.in_loop() && stage_ == Stage::kGreeting && !greeted_);
  greeted_ = std::move(done);
  const auto self = shared_from_this();
  deadline_ = loop_.after(timeout, [this, timeout] {
    close(
        {ErrorCode::kDeadlineExceeded,
         str("[net] expected a greeting of ", peer_, " within ",
             seconds(timeout), " s, found none")});
  });
  channel_->handshake([self](const std::error_code& error, std::size_t) {
    if (self->stage_ != Stage::kGreeting) {
      return;
    }
    if (error) {
      self->close(self->ended(error));
      return;
    }
    self->queue(kGreetingType, greeting_of(self->side_));
    self->read();
  });
}

void Connection::start(ConnectionHandlers handlers) {
  SHERD_ASSERT(loop_.in_loop() && !handlers_.on_frame);
  SHERD_ASSERT(handlers.on_frame && handlers.on_closed);
  handlers_ = std::move(handlers);
  if (stage_ == Stage::kWaiting) {
    stage_ = Stage::kOpen;
  }
  loop_.post([self = shared_from_this()] {
    self->deliver();
    if (self->stage_ == Stage::kClosed) {
      self->notify_closed();
    } else {
      self->read();
    }
  });
}

void Connection::send(std::uint16_t type, std::string_view payload) {
  SHERD_ASSERT(loop_.in_loop());
  SHERD_CHECK(
      type != kGreetingType, "[net] expected a type below ", kGreetingType,
      ", found it");
  SHERD_CHECK(
      payload.size() <= options_.payload_bytes_max,
      "[net] expected a payload of at most ", options_.payload_bytes_max,
      " bytes, found ", payload.size());
  if (!open()) {
    return;
  }
  const std::size_t waiting =
      unsent_bytes() + payload.size() + kFrameHeaderBytes;
  if (waiting > options_.send_queue_bytes_max) {
    close(
        {ErrorCode::kUnavailable,
         str("[net] ", peer_,
             " does not take what it is sent: expected at "
             "most ",
             options_.send_queue_bytes_max, " bytes to wait for it, found ",
             waiting)});
    return;
  }
  queue(type, payload);
}

void Connection::queue(std::uint16_t type, std::string_view payload) {
  append_frame(queued_, type, payload);
  write();
}

void Connection::write() {
  if (write_under_way_ || queued_.empty() || !write_failure_.ok()) {
    return;
  }
  std::swap(writing_, queued_);
  write_under_way_ = true;
  channel_->write(
      writing_,
      [self = shared_from_this()](const std::error_code& error, std::size_t) {
        self->on_written(error);
      });
}

void Connection::on_written(const std::error_code& error) {
  write_under_way_ = false;
  writing_.clear();
  if (writing_.capacity() > kKeptBytes) {
    writing_.shrink_to_fit();
  }
  if (stage_ == Stage::kClosed) {
    return;
  }
  if (error) {
    write_failure_ = ended(error);
    read();  // Reading fails, too, at once.
    return;
  }
  write();
  if (stage_ == Stage::kFinishing && !write_under_way_) {
    channel_->end_writing();
  }
}

void Connection::read() {
  if (read_under_way_ || stage_ == Stage::kClosed ||
      stage_ == Stage::kWaiting) {
    return;
  }
  read_under_way_ = true;
  channel_->read_some(
      buffer_,
      [self = shared_from_this()](
          const std::error_code& error, std::size_t count) {
        self->read_under_way_ = false;
        self->on_read(error, count);
      });
}

void Connection::on_read(const std::error_code& error, std::size_t count) {
  if (stage_ == Stage::kClosed) {
    return;
  }
  if (error) {
    close(write_failure_.ok() ? ended(error) : write_failure_);
    return;
  }
  last_received_ = loop_.now();
  const Status status = stage_ == Stage::kFinishing
      ? Status()
      : reader_.take({buffer_.data(), count}, received_);
  if (count == buffer_.size() && count < kReadBytesMax) {
    buffer_.resize(2 * count);
  }
  std::move(
      received_.begin(), received_.end(), std::back_inserter(undelivered_));
  received_.clear();
  if (stage_ == Stage::kGreeting && !undelivered_.empty()) {
    check_greeting();
  }
  deliver();
  if (!status.ok()) {
    close({status.code(), str(status.message(), ", from ", peer_)});
  }
  read();
}

void Connection::check_greeting() {
  const Frame first = std::move(undelivered_.front());
  undelivered_.pop_front();
  std::string found;
  if (first.type != kGreetingType) {
    found = str("a frame of type ", first.type);
  } else if (first.payload == greeting_of(side_)) {
    found = "what it was sent itself: an echo";
  } else if (
      first.payload !=
      greeting_of(side_ == Side::kDialled ? Side::kAccepted : Side::kDialled)) {
    found = "another one";
  }
  if (!found.empty()) {
    close(
        {ErrorCode::kPeerMismatch,
         str("[net] expected a greeting of ", peer_, " first, found ", found)});
    return;
  }
  stage_ = Stage::kWaiting;
  deadline_.cancel();
  std::exchange(greeted_, nullptr)({});
}

void Connection::deliver() {
  while (stage_ == Stage::kOpen && !undelivered_.empty()) {
    Frame frame = std::move(undelivered_.front());
    undelivered_.pop_front();
    if (frame.type == kGreetingType) {
      close(
          {ErrorCode::kPeerMismatch,
           str("[net] expected one greeting of ", peer_, ", found another")});
      return;
    }
    handlers_.on_frame(std::move(frame));
  }
}

void Connection::close(Status why) {
  SHERD_ASSERT(loop_.in_loop() && !why.ok());
  if (stage_ == Stage::kClosed) {
    return;
  }
  const bool finishing = stage_ == Stage::kFinishing;
  stage_ = Stage::kClosed;
  if (!finishing) {
    reason_ = std::move(why);
  }
  undelivered_.clear();
  queued_.clear();
  deadline_.cancel();
  channel_->close();
  loop_.post([self = shared_from_this()] { self->notify_closed(); });
}

void Connection::finish(Status why) {
  SHERD_ASSERT(loop_.in_loop() && !why.ok());
  if (!open()) {
    return;
  }
  stage_ = Stage::kFinishing;
  reason_ = std::move(why);
  undelivered_.clear();
  deadline_ = loop_.after(options_.finish_timeout, [this] { close(reason_); });
  if (!write_under_way_ && write_failure_.ok()) {
    channel_->end_writing();
  }
  read();
}

void Connection::abandon() {
  SHERD_ASSERT(loop_.in_loop());
  abandoned_ = true;
  if (stage_ != Stage::kFinishing && stage_ != Stage::kClosed) {
    close({ErrorCode::kAborted, "[net] its owner has gone"});
  }
  // Posted, because the caller may be one of the handlers.
  loop_.post([self = shared_from_this()] {
    self->handlers_ = {};
    self->greeted_ = nullptr;
  });
}

// Calls the function that waits for the greeting, or the handlers; before start() there is neither.
void Connection::notify_closed() {
  if (abandoned_) {
    return;
  }
  if (greeted_) {
    std::exchange(greeted_, nullptr)(reason_);
    return;
  }
  // The handlers are empty afterwards, so that nothing they hold is kept alive.
  const ConnectionHandlers handlers = std::exchange(handlers_, {});
  if (handlers.on_closed) {
    handlers.on_closed(reason_);
  }
}

Status Connection::ended(const std::error_code& error) const {
  const Status status = channel_->failure(error);
  std::string when;
  if (stage_ == Stage::kGreeting && status.code() == ErrorCode::kPeerLost) {
    when = " before its greeting; it may want a secret or certificate";
  } else if (reader_.inside_frame()) {
    when = ", in the midst of a frame";
  }
  return {
      status.code(),
      str("[net] connection with ", peer_, ": ", status.message(), when)};
}

}  // namespace sherd::net
