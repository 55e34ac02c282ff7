// SPDX-License-Identifier: Apache-2.0
//
// Session is one who fetches, on the server's side: what it has asked for, and the
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

struct SessionHandlers {
  // Once; answer with serve(), tell() or refuse(), now or later.
  std::function<void(const Request& request)> on_request;
  // There is a chunk to be sent.
  std::function<void()> on_wish;
  // May destroy it. Nothing is called after it.
  std::function<void()> on_closed;
};

class Session {
 public:
  explicit Session(std::unique_ptr<net::Connection> connection);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void start(SessionHandlers handlers);

  // None: it has not come.
  const std::optional<Request>& request() const { return request_; }
  // It has asked and has no answer.
  bool waits() const { return stage_ == Stage::kWaits; }
  bool is_served() const { return stage_ == Stage::kServed; }
  // Not refused and not answered for good.
  bool open() const { return connection_->open(); }
  Instant last_heard() const { return connection_->last_heard(); }

  // Answers. REQUIRES: waits().
  void tell(const StateId& state);
  // Shares the bytes until the session's end. answer.bytes is set. Chunks go out
  // with the digests that the answer has, or that they have then.
  void serve(Answer answer, std::shared_ptr<const std::string> bytes);
  void say_waiting();
  // Ends it with that reason, if it is open.
  void refuse(Why why, const std::string& reason);

  // What is_served(); null before.
  const std::shared_ptr<const std::string>& bytes() const { return bytes_; }
  // Of a state, not of a sum. REQUIRES: request().
  bool is_of_state() const { return request_->kind != Kind::kFetchSum; }
  // Sums after this step are what it will need next. REQUIRES: is_served().
  std::int64_t step() const;

  // It wants a chunk, and takes what it is sent.
  bool wants_chunk() const;
  // The same, but for room.
  bool has_wishes() const { return open() && !wishes_.empty(); }
  // Its bytes. REQUIRES: wants_chunk().
  std::size_t send_chunk();

 private:
  enum class Stage { kNew, kWaits, kServed, kEnded };

  void heard(const net::Frame& frame);
  void heard_request(const net::Frame& frame);
  void heard_wish(const net::Frame& frame);
  void send(FrameType type, const std::string& payload);

  const std::unique_ptr<net::Connection> connection_;
  SessionHandlers handlers_;
  Stage stage_ = Stage::kNew;
  std::optional<Request> request_;
  Answer answer_;
  std::shared_ptr<const std::string> bytes_;
  std::deque<std::uint64_t> wishes_;  // Places.
};

}  // namespace sherd::ft::transfer
