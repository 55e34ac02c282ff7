// SPDX-License-Identifier: Apache-2.0
//
// FramedSocket is one non-blocking connection between neighbours of a ring: it receives frames
// directly into their destinations and sends them from where they lie. It knows nothing of
// reductions. Thread rule: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include "base/descriptor.h"
#include "base/status.h"
#include "ft/ring/frame.h"

namespace sherd::ft::ring {

class FramedSocket {
 public:
  explicit FramedSocket(Descriptor socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }

  // ---- receiving ----
  enum class ReadEvent {
    kNothing,  // Nothing more has arrived.
    kSome,
    // A header has arrived; the caller has to provide a place for its payload.
    // The frame is complete and the payload is in its place.
    kHeader,
    kFrame,
    kEnd,  // Nothing more will arrive; problem() says why.
  };
  // Makes at most one system call.
  ReadEvent read();
  const FrameHeader& header() const { return header_; }
  // Called after kHeader. The place is written to until kFrame; it may be null if no bytes follow.
  void receive_into(void* place);
  // The same for short payloads, which text() returns.
  void receive_text();
  std::string_view text() const { return {text_.data(), text_bytes_}; }
  // Valid after kFrame: whether the payload matches its checksum.
  bool intact() const { return checksum_ == header_.payload_checksum; }
  const Status& problem() const { return problem_; }

  // ---- sending ----
  // Sent after the current frame.
  void queue_frame(std::string frame) { queued_frames_ += std::move(frame); }
  bool can_send() const {
    return !under_way() && queued_frames_.empty() && !broken_;
  }
  // REQUIRES: can_send(). The payload is read until can_send() is true again.
  void send(const HeaderBytes& header, const void* payload, std::size_t bytes);
  bool wants_to_write() const {
    return !broken_ && (under_way() || !queued_frames_.empty());
  }
  // Sends as much as the socket takes. A failure shows only in read(), because the peer's last
  // frames may tell more.
  void write();

  // Gives up the socket, together with the bytes that complete the current frame, followed by
  // `words`. No payload's place is read or written afterwards.
  struct Unsent {
    Descriptor socket;
    std::string bytes;
  };
  Unsent detach(std::string_view words);

 private:
  bool under_way() const { return header_left() + payload_left_ > 0; }
  std::size_t header_left() const { return kHeaderBytes - header_sent_; }
  ReadEvent parse();
  ReadEvent end(Status problem);
  void took(std::size_t bytes);
  void receive_payload();
  // Where the rest of the payload goes. A text lies in this object, which may be moved while it is
  // received, so no pointer to it is kept.
  char* payload_rest();

  Descriptor socket_;
  // Receiving.
  enum class Stage { kHeader, kPlace, kPayload };
  Stage stage_ = Stage::kHeader;
  HeaderBytes next_header_ = {};
  std::size_t next_header_bytes_ = 0;
  FrameHeader header_;
  bool is_text_ = false;
  char* place_ = nullptr;  // Where the payload begins, unless it is a text.
  std::size_t place_left_ = 0;
  std::uint32_t checksum_ = 0;
  std::array<char, kTextBytesMax> text_ = {};
  std::size_t text_bytes_ = 0;
  Status problem_;
  // Sending.
  HeaderBytes header_out_ = {};
  std::size_t header_sent_ = kHeaderBytes;
  const char* payload_ = nullptr;
  std::size_t payload_left_ = 0;
  std::string queued_frames_;
  bool broken_ = false;
};

}  // namespace sherd::ft::ring
