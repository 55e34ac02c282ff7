// SPDX-License-Identifier: Apache-2.0
//
// RequesterConnection is the server's side of one fetch: the request, and the requested chunks that
// have not been sent. The server decides the answer and when a chunk goes out. Thread rule: its
// loop.
#pragma once

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

struct RequesterHandlers {
  // Called once; answer with serve(), tell() or refuse(), now or later.
  std::function<void(const TransferRequest& request)> on_request;
  // A chunk was requested.
  std::function<void()> on_chunk_requested;
  // May destroy it. Nothing is called after it.
  std::function<void()> on_closed;
};

class RequesterConnection {
 public:
  explicit RequesterConnection(std::unique_ptr<net::Connection> connection);
  RequesterConnection(const RequesterConnection&) = delete;
  RequesterConnection& operator=(const RequesterConnection&) = delete;

  void start(RequesterHandlers handlers);

  // None before it has arrived.
  const std::optional<TransferRequest>& request() const { return request_; }
  // The request has no answer yet.
  bool waits() const { return stage_ == Stage::kWaits; }
  bool is_served() const { return stage_ == Stage::kServed; }
  // Neither refused nor answered for good.
  bool open() const { return connection_->open(); }
  Instant last_received() const { return connection_->last_received(); }

  // Lets it wait from `now` on for as long as its request says. REQUIRES: waits().
  void wait_from(Instant now) {
    waits_until_ = now + std::chrono::milliseconds(request_->wait_ms_max);
  }
  Instant waits_until() const { return waits_until_; }

  // These answer. REQUIRES: waits().
  void tell(const StateId& state);
  // Shares the bytes until the connection's end; sets answer.bytes. Chunks are sent with the
  // answer's digests; without any, each chunk's is computed when it is sent.
  void serve(TransferAnswer answer, std::shared_ptr<const std::string> bytes);
  void send_waiting();
  // Closes it with that reason, if it is open, and shares the bytes no longer.
  void refuse(RefusalReason why, const std::string& reason);

  // What is served; null before.
  const std::shared_ptr<const std::string>& bytes() const { return bytes_; }
  // It asks for a state, not for a sum. REQUIRES: request().
  bool is_of_state() const { return request_->kind != RequestKind::kFetchSum; }
  // The sums after this step are what the requester will need next. REQUIRES: is_served().
  std::int64_t step() const;

  // A chunk is requested, and the send queue has room.
  bool can_send_chunk() const;
  // A chunk is requested.
  bool has_chunk_requests() const { return open() && !chunk_requests_.empty(); }
  // Returns the chunk's size. REQUIRES: can_send_chunk().
  std::size_t send_chunk();

 private:
  enum class Stage { kNew, kWaits, kServed, kEnded };

  void receive(const net::Frame& frame);
  void receive_request(const net::Frame& frame);
  void receive_chunk_request(const net::Frame& frame);
  void send(TransferFrameType type, const std::string& payload);

  const std::unique_ptr<net::Connection> connection_;
  RequesterHandlers handlers_;
  Stage stage_ = Stage::kNew;
  std::optional<TransferRequest> request_;
  Instant waits_until_{0};
  TransferAnswer answer_;
  std::shared_ptr<const std::string> bytes_;
  std::deque<std::uint64_t> chunk_requests_;
};

}  // namespace sherd::ft::transfer
