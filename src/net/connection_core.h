// SPDX-License-Identifier: Apache-2.0
//
// ConnectionCore is what a Connection is made of: a channel, the frames on it and
// the steps from a fresh socket to an ended connection. Operations under way share
// it, so that it outlives its owner's handle by them. Thread rule: its loop.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "base/status.h"
#include "net/channel.h"
#include "net/connection.h"
#include "net/frame.h"
#include "net/loop.h"

namespace sherd::net {

// The payload of the greeting that a side sends. They differ, so that nobody takes
// an echo for a peer: of a socket that was connected to itself, as happens with
// ports of outgoing connections, or of a stranger who sends back what it gets.
constexpr std::string_view greeting_of(Side side) {
  return side == Side::kDialled ? "dialled" : "accepted";
}

class ConnectionCore : public std::enable_shared_from_this<ConnectionCore> {
 public:
  // The loop outlives it.
  ConnectionCore(
      Loop& loop,
      std::unique_ptr<Channel> channel,
      Side side,
      std::string peer,
      const ConnectionOptions& options);

  // TLS, where there is, then a greeting each way; `done` hears how it went,
  // once, from the loop, unless the core is abandoned before.
  void greet(Duration timeout, std::function<void(const Status&)> done);

  // Connection's.
  void start(ConnectionHandlers handlers);
  void send(std::uint16_t type, std::string_view payload);
  void close(Status why);
  void finish(Status why);
  void abandon();

  bool open() const {
    return stage_ == Stage::kWaiting || stage_ == Stage::kOpen;
  }
  const std::string& peer() const { return peer_; }
  Instant last_received() const { return last_received_; }
  std::size_t unsent_bytes() const { return queued_.size() + writing_.size(); }

 private:
  enum class Stage {
    kGreeting,
    kWaiting,  // For start(). Nothing is read.
    kOpen,
    kFinishing,  // What waits is sent; what comes is dropped.
    kClosed,
  };

  void queue(std::uint16_t type, std::string_view payload);
  void write();
  void on_written(const std::error_code& error);
  void read();
  void on_read(const std::error_code& error, std::size_t count);
  void check_greeting();
  void deliver();
  void notify_closed();
  Status ended(const std::error_code& error) const;

  Loop& loop_;
  const std::unique_ptr<Channel> channel_;
  const Side side_;
  const std::string peer_;
  const ConnectionOptions options_;
  Stage stage_ = Stage::kGreeting;
  bool abandoned_ = false;  // Nobody is to be called any more.
  Timer deadline_;          // Of greeting or finishing.
  std::function<void(const Status&)> greeted_;
  ConnectionHandlers handlers_;
  Status reason_;  // Of the end.
  // What is being written, and what comes next. A failure to write is kept until
  // reading has ended too: what the peer said last may tell why.
  std::string writing_;
  std::string queued_;
  bool write_under_way_ = false;
  Status write_failure_;
  std::vector<char> buffer_;
  bool read_under_way_ = false;
  FrameReader reader_;
  std::vector<Frame> received_;
  std::deque<Frame> undelivered_;
  Instant last_received_{0};
};

}  // namespace sherd::net
