// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/framed_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include "base/check.h"
#include "base/crc32c.h"

namespace sherd::ft::ring {
namespace {

// The limit of one read, so that its bytes are in the cache for the checksum.
constexpr std::size_t kReadMax = std::size_t{256} << 10U;

bool is_temporary(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR ||
      error == ENOBUFS;
}

}  // namespace

FramedSocket::ReadEvent FramedSocket::read() {
  SHERD_ASSERT(stage_ != Stage::kPlace, "a payload without a place");
  if (!problem_.ok()) {
    return ReadEvent::kEnd;
  }
  if (stage_ == Stage::kHeader && next_header_bytes_ == kHeaderBytes) {
    return parse();
  }
  if (stage_ == Stage::kPayload && place_left_ == 0) {
    stage_ = Stage::kHeader;
    return ReadEvent::kFrame;
  }
  // The next header is read together with the payload before it, which saves a call.
  std::array<iovec, 2> parts = {};
  std::size_t used = 0;
  const std::size_t wanted = std::min(place_left_, kReadMax);
  if (stage_ == Stage::kPayload) {
    parts[used++] = {payload_rest(), wanted};
  }
  if (stage_ == Stage::kHeader || wanted == place_left_) {
    parts[used++] = {
        next_header_.data() + next_header_bytes_,
        kHeaderBytes - next_header_bytes_};
  }
  const ssize_t got =
      ::readv(socket_.get(), parts.data(), static_cast<int>(used));
  if (got < 0 && is_temporary(errno)) {
    return ReadEvent::kNothing;
  }
  if (got <= 0) {
    return end(
        {ErrorCode::kPeerLost,
         got == 0 ? "closed the connection" : std::strerror(errno)});
  }
  took(static_cast<std::size_t>(got));
  if (stage_ == Stage::kPayload && place_left_ == 0) {
    stage_ = Stage::kHeader;
    return ReadEvent::kFrame;
  }
  if (stage_ == Stage::kHeader && next_header_bytes_ == kHeaderBytes) {
    return parse();
  }
  return ReadEvent::kSome;
}

void FramedSocket::took(std::size_t bytes) {
  if (stage_ == Stage::kPayload) {
    const std::size_t payload = std::min(bytes, place_left_);
    checksum_ = crc32c(payload_rest(), payload, checksum_);
    place_left_ -= payload;
    bytes -= payload;
  }
  next_header_bytes_ += bytes;
}

FramedSocket::ReadEvent FramedSocket::parse() {
  auto header = parse_header(next_header_);
  if (!header.ok()) {
    return end(header.status());
  }
  header_ = header.value();
  next_header_bytes_ = 0;
  checksum_ = 0;
  stage_ = Stage::kPlace;
  return ReadEvent::kHeader;
}

FramedSocket::ReadEvent FramedSocket::end(Status problem) {
  problem_ = std::move(problem);
  return ReadEvent::kEnd;
}

void FramedSocket::receive_into(void* place) {
  is_text_ = false;
  place_ = static_cast<char*>(place);
  receive_payload();
}

void FramedSocket::receive_text() {
  SHERD_ASSERT(header_.payload_bytes <= text_.size());
  is_text_ = true;
  text_bytes_ = header_.payload_bytes;
  receive_payload();
}

void FramedSocket::receive_payload() {
  SHERD_ASSERT(stage_ == Stage::kPlace);
  stage_ = Stage::kPayload;
  place_left_ = bytes_after(header_);
}

char* FramedSocket::payload_rest() {
  char* const begin = is_text_ ? text_.data() : place_;
  return begin + (bytes_after(header_) - place_left_);
}

void FramedSocket::send(
    const HeaderBytes& header, const void* payload, std::size_t bytes) {
  SHERD_ASSERT(can_send());
  header_out_ = header;
  header_sent_ = 0;
  payload_ = static_cast<const char*>(payload);
  payload_left_ = bytes;
}

void FramedSocket::write() {
  while (wants_to_write()) {
    std::array<iovec, 3> parts = {};
    std::size_t used = 0;
    if (header_left() > 0) {
      parts[used++] = {header_out_.data() + header_sent_, header_left()};
    }
    if (payload_left_ > 0) {
      // The const_cast is safe: sendmsg() only reads.
      parts[used++] = {const_cast<char*>(payload_), payload_left_};
    }
    if (!queued_frames_.empty()) {
      parts[used++] = {queued_frames_.data(), queued_frames_.size()};
    }
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = used;
    const ssize_t sent =
        ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && is_temporary(errno)) {
      return;
    }
    if (sent < 0) {
      broken_ = true;
      return;
    }
    auto left = static_cast<std::size_t>(sent);
    const std::size_t of_header = std::min(left, header_left());
    header_sent_ += of_header;
    left -= of_header;
    const std::size_t of_payload = std::min(left, payload_left_);
    payload_ += of_payload;
    payload_left_ -= of_payload;
    queued_frames_.erase(0, left - of_payload);
  }
}

FramedSocket::Unsent FramedSocket::detach(std::string_view words) {
  Unsent rest;
  // Even if received bytes are damaged, an ending can still be sent.
  const bool dead = !problem_.ok() && problem_.code() == ErrorCode::kPeerLost;
  if (!broken_ && !dead) {
    if (under_way()) {
      rest.bytes.append(header_out_.data() + header_sent_, header_left());
      rest.bytes.append(payload_, payload_left_);
    }
    rest.bytes += queued_frames_;
    rest.bytes += words;
  }
  rest.socket = std::move(socket_);
  header_sent_ = kHeaderBytes;
  payload_left_ = 0;
  queued_frames_.clear();
  broken_ = true;
  problem_ = Status(ErrorCode::kAborted, "left");
  return rest;
}

}  // namespace sherd::ft::ring
