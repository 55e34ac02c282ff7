// SPDX-License-Identifier: Apache-2.0
//
// RequesterConnection is the server's side of one fetch: the request, and the requested chunks that
// have not been sent. The server decides on the answer and on when a chunk is sent. Thread rule:
// its loop.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include "base/clock.h"
#include "ft/transfer/transfer_messages.h"
#include "net/connection.h"

namespace sherd::ft::transfer {

class RequesterConnection {
 public:
  struct Handlers {
    // Called once. It is answered with serve(), tell() or refuse(), at once or later.
    std::function<void(const TransferRequest& request)> on_request;
    std::function<void()> on_chunk_requested;
    // It may destroy the connection. No handler is called after it.
    std::function<void()> on_closed;
  };

  explicit RequesterConnection(net::ConnectionHandle connection);
  RequesterConnection(const RequesterConnection&) = delete;
  RequesterConnection& operator=(const RequesterConnection&) = delete;

  void start(Handlers handlers);

  // Nullopt until the request has arrived.
  const std::optional<TransferRequest>& request() const { return request_; }
  // Whether the request has no answer yet.
  bool waits() const { return stage_ == Stage::kWaits; }
  bool is_served() const { return stage_ == Stage::kServed; }
  // Whether it is neither refused nor completely answered.
  bool open() const { return connection_->open(); }
  // When something was last received from it or a chunk was sent to it.
  Instant last_moved() const {
    return std::max(connection_->last_received(), last_sent_);
  }

  // From `now` on it waits for as long as its request says. REQUIRES: waits().
  void wait_from(Instant now) {
    waits_until_ = now + std::chrono::milliseconds(request_->wait_ms_max);
  }
  Instant waits_until() const { return waits_until_; }

  // These answer. REQUIRES: waits().
  void tell(const StateId& state);
  // Shares the bytes until the connection ends, and sets answer.bytes. Chunks are sent with the
  // answer's digests; if it has none, each chunk's digest is computed when it is sent.
  void serve(TransferAnswer answer, std::shared_ptr<const std::string> bytes);
  void send_waiting();
  // Closes the connection with that reason, if it is open, and stops sharing the bytes.
  void refuse(RefusalReason why, const std::string& reason);

  // What is served; null before serve().
  const std::shared_ptr<const std::string>& bytes() const { return bytes_; }
  // Whether it requests a state rather than a sum. REQUIRES: request().
  bool is_of_state() const { return request_->kind != RequestKind::kFetchSum; }
  // The requester will next need the sums after this step. REQUIRES: is_served().
  std::int64_t step() const;

  // Whether a chunk is requested and the send queue has room.
  bool can_send_chunk() const;
  // A chunk is requested.
  bool has_chunk_requests() const { return open() && !chunk_requests_.empty(); }
  // Sends one chunk and returns its size. REQUIRES: can_send_chunk().
  std::size_t send_chunk(Instant now);

 private:
  enum class Stage { kNew, kWaits, kServed, kEnded };

  void receive(const net::Frame& frame);
  void receive_request(const net::Frame& frame);
  void receive_chunk_request(const net::Frame& frame);
  void send(TransferFrameType type, const std::string& payload);

  const net::ConnectionHandle connection_;
  Handlers handlers_;
  Stage stage_ = Stage::kNew;
  std::optional<TransferRequest> request_;
  Instant waits_until_{0};
  Instant last_sent_{0};
  TransferAnswer answer_;
  std::shared_ptr<const std::string> bytes_;
  std::deque<std::uint64_t> chunk_requests_;
};

}  // namespace sherd::ft::transfer
