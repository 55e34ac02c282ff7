// SPDX-License-Identifier: Apache-2.0
//
// Connection sends and receives frames over one TCP connection, encrypted when Security says so.
// Listener and Connector create it after both sides have proved that they speak this protocol and
// know each other. Its owner may destroy it at any time, even in its handlers. Thread rule: its
// loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include "base/clock.h"
#include "base/status.h"
#include "net/frame.h"

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

class ConnectionCore;

class Connection {
 public:
  // For Listener and Connector.
  explicit Connection(std::shared_ptr<ConnectionCore> core);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  // Closes without calling a handler. A finish() that has begun continues.
  ~Connection();

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
  bool open() const;
  // "10.0.0.7:52133".
  const std::string& peer() const;
  // When bytes were received last.
  Instant last_received() const;
  // How many bytes are in the send queue.
  std::size_t unsent_bytes() const;

 private:
  const std::shared_ptr<ConnectionCore> core_;
};

}  // namespace sherd::net
