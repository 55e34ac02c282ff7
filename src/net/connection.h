// SPDX-License-Identifier: Apache-2.0
//
// Connection sends and receives frames over one TCP connection, encrypted where
// Security says so. Listeners and dials make it, when both sides have shown that
// they speak these frames and know each other. Its owner may destroy it whenever
// it likes, also in its handlers. Thread rule: its loop.
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

// Of the frame that both sides send first; not for users.
constexpr std::uint16_t kGreetingType = 0xffff;

struct ConnectionOptions {
  // Behaviour. A longer payload is not sent.
  std::size_t payload_bytes_max = std::size_t{16} << 20U;
  // One that comes and is longer ends the connection, by its header alone: what
  // each peer can make this process keep. 0: as payload_bytes_max.
  std::size_t received_bytes_max = 0;
  // What may wait for a peer that reads too slowly: then the connection ends.
  // Costs that memory, of each such peer.
  std::size_t send_queue_bytes_max = std::size_t{64} << 20U;
  // A peer that is gone without a word, or does not read: while data waits ...
  Duration user_timeout = std::chrono::seconds(5);
  // ... and while none does. Neither notices what the other does.
  Duration keep_alive_idle = std::chrono::seconds(2);
  Duration keep_alive_interval = std::chrono::seconds(1);
  int keep_alive_probes = 3;
  // How long finish() waits for the peer.
  Duration finish_timeout = std::chrono::seconds(1);
};

struct ConnectionHandlers {
  std::function<void(Frame frame)> on_frame;
  // Once, and no frame after it. Never from inside a call of the connection.
  std::function<void(const Status& reason)> on_closed;
};

class ConnectionCore;

class Connection {
 public:
  // For listeners and dials.
  explicit Connection(std::shared_ptr<ConnectionCore> core);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  // Closes without calling anybody. What finish() was told still goes its way.
  ~Connection();

  // Begins to receive. Call once; frames and the connection's end wait for it.
  void start(ConnectionHandlers handlers);

  // Puts a frame behind those that wait, and sends as the peer takes them. Does
  // nothing once the connection is closed or finishing. When more waits than the
  // options allow, the connection is closed with that reason.
  // Throws Error for a payload above the limit and for kGreetingType.
  void send(std::uint16_t type, std::string_view payload);

  // Ends it at once; `why`, a failure, is what on_closed hears. Only the first
  // reason counts.
  void close(Status why);
  // The same after what waits has been sent and the peer has closed its side, or
  // finish_timeout. Nothing is received any more.
  void finish(Status why);

  // Neither closed nor finishing, as far as is known.
  bool open() const;
  // "10.0.0.7:52133".
  const std::string& peer() const;
  // When bytes came last.
  Instant last_received() const;
  // That wait to be sent.
  std::size_t unsent_bytes() const;

 private:
  const std::shared_ptr<ConnectionCore> core_;
};

}  // namespace sherd::net
