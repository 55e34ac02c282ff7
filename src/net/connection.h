// SPDX-License-Identifier: Apache-2.0
//
// Connection sends and receives frames over one TCP connection, encrypted when Security says so.
// Listener and Connector create it, and hand it over after both sides have proved that they speak
// this protocol and know each other. Its owner may destroy the handle at any time, even in its
// handlers; operations under way share the connection until they end. Thread rule: its loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "base/clock.h"
#include "base/status.h"
#include "net/channel.h"
#include "net/frame.h"
#include "net/loop.h"

namespace sherd::net {

// The type of the frame that both sides send first; users must not send it.
constexpr std::uint16_t kGreetingType = 0xffff;

struct ConnectionOptions {
  // ---- behaviour ----
  // A longer payload cannot be sent.
  std::size_t payload_bytes_max = std::size_t{16} << 20U;
  // A longer payload, as announced in a peer's header, ends the connection: this limits what each
  // peer can make this process keep. 0 means payload_bytes_max.
  std::size_t received_bytes_max = 0;
  // The limit of bytes that wait for a peer that reads too slowly; above it the connection ends.
  // Costs that memory for each such peer.
  std::size_t send_queue_bytes_max = std::size_t{64} << 20U;
  // When a silent or hanging peer is noticed; see set_peer_options().
  Duration user_timeout = std::chrono::seconds(5);
  // How long finish() waits for the peer.
  Duration finish_timeout = std::chrono::seconds(1);
};

struct ConnectionHandlers {
  std::function<void(Frame frame)> on_frame;
  // Called once, after the last frame, and never from inside a call of the connection.
  std::function<void(const Status& reason)> on_closed;
};

// The greeting's payload. The payloads of the two sides differ, so that an echo is not mistaken for
// a peer: a socket may be connected to itself, as happens with ports of outgoing connections, and
// an unknown client may send back what it gets.
constexpr std::string_view greeting_of(Side side) {
  return side == Side::kDialled ? "dialled" : "accepted";
}

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // ---- for Listener and Connector ----

  // The loop must outlive it.
  Connection(
      Loop& loop,
      std::unique_ptr<Channel> channel,
      Side side,
      std::string peer,
      const ConnectionOptions& options);
  // Does the TLS handshake, if there is security, and then exchanges greetings. `done` gets the
  // outcome once, from the loop, unless abandon() came first.
  void greet(Duration timeout, std::function<void(const Status&)> done);
  // Closes without calling a handler. A finish() that has begun continues.
  void abandon();

  // ---- for its owner ----

  // Begins to receive. Must be called once; frames and the connection's end wait for it.
  void start(ConnectionHandlers handlers);

  // Queues a frame, and sends as fast as the peer reads. Does nothing once the connection is closed
  // or finishing. When more than send_queue_bytes_max waits, the connection is closed with that
  // reason. Throws Error for a payload above the limit and for kGreetingType.
  void send(std::uint16_t type, std::string_view payload);

  // Ends the connection at once; on_closed gets `why`, a failure. Only the first reason counts.
  void close(Status why);
  // Ends the connection gracefully: when the queue has been sent and the peer has closed its side,
  // or after finish_timeout. Nothing is received any more.
  void finish(Status why);

  // Whether it is neither closed nor finishing, as far as this side knows.
  bool open() const {
    return stage_ == Stage::kWaiting || stage_ == Stage::kOpen;
  }
  // "10.0.0.7:52133".
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

// What an owner has: destroying it abandons the connection.
struct AbandonConnection {
  std::shared_ptr<Connection> shared;
  void operator()(Connection* /*the same*/) {
    std::exchange(shared, nullptr)->abandon();
  }
};
using ConnectionHandle = std::unique_ptr<Connection, AbandonConnection>;

inline ConnectionHandle handle_of(std::shared_ptr<Connection> connection) {
  Connection* its = connection.get();
  return {its, {std::move(connection)}};
}

}  // namespace sherd::net
