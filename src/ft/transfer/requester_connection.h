// SPDX-License-Identifier: Apache-2.0
//
// RequesterConnection is one who fetches, on the server's side: what it has asked for, and the
// chunks that it wants and has not been sent. What the answer is and when a chunk
// goes out is the server's to say. Thread rule: its loop.
#pragma once

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
  // Once; answer with serve(), tell() or refuse(), now or later.
  std::function<void(const TransferRequest& request)> on_request;
  // There is a chunk to be sent.
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

  // None: it has not come.
  const std::optional<TransferRequest>& request() const { return request_; }
  // It has asked and has no answer.
  bool waits() const { return stage_ == Stage::kWaits; }
  bool is_served() const { return stage_ == Stage::kServed; }
  // Not refused and not answered for good.
  bool open() const { return connection_->open(); }
  Instant last_received() const { return connection_->last_received(); }

  // Answers. REQUIRES: waits().
  void tell(const StateId& state);
  // Shares the bytes until the session's end. answer.bytes is set. Chunks go out
  // with the digests that the answer has, or that they have then.
  void serve(TransferAnswer answer, std::shared_ptr<const std::string> bytes);
  void send_waiting();
  // Ends it with that reason, if it is open.
  void refuse(RefusalReason why, const std::string& reason);

  // What is_served(); null before.
  const std::shared_ptr<const std::string>& bytes() const { return bytes_; }
  // Of a state, not of a sum. REQUIRES: request().
  bool is_of_state() const { return request_->kind != RequestKind::kFetchSum; }
  // Sums after this step are what it will need next. REQUIRES: is_served().
  std::int64_t step() const;

  // It wants a chunk, and takes what it is sent.
  bool can_send_chunk() const;
  // The same, but for room.
  bool has_chunk_requests() const { return open() && !chunk_requests_.empty(); }
  // Its bytes. REQUIRES: can_send_chunk().
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
  TransferAnswer answer_;
  std::shared_ptr<const std::string> bytes_;
  std::deque<std::uint64_t> chunk_requests_;  // Places.
};

}  // namespace sherd::ft::transfer
