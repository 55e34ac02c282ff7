// SPDX-License-Identifier: Apache-2.0
//
// ConnectionCore is the state machine of a Connection: a channel, the frames on it, and the stages
// from a fresh socket to a closed connection. Operations under way share it, so that it outlives
// its owner's handle until they end. Thread rule: its loop.
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

// The greeting's payload. The payloads of the two sides differ, so that an echo is not mistaken for
// a peer: a socket may be connected to itself, as happens with ports of outgoing connections, and
// an unknown client may send back what it gets.
constexpr std::string_view greeting_of(Side side) {
  return side == Side::kDialled ? "dialled" : "accepted";
}

class ConnectionCore : public std::enable_shared_from_this<ConnectionCore> {
 public:
  // The loop must outlive it.
  ConnectionCore(
      Loop& loop,
      std::unique_ptr<Channel> channel,
      Side side,
      std::string peer,
      const ConnectionOptions& options);

  // Does the TLS handshake, if there is security, and then exchanges greetings. `done` gets the
  // outcome once, from the loop, unless abandon() came first.
  void greet(Duration timeout, std::function<void(const Status&)> done);

  // These implement the calls of Connection.
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
    kWaiting,  // Nothing is read before start().
    kOpen,
    kFinishing,  // The queue is sent; received bytes are dropped.
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
  bool abandoned_ = false;  // No handler is called any more.
  Timer deadline_;          // The deadline for greeting or finishing.
  std::function<void(const Status&)> greeted_;
  ConnectionHandlers handlers_;
  Status reason_;  // Why it has ended.
  // The buffer being written and the next one. A write failure is kept until reading has ended,
  // too, because the peer's last frame may say why.
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
