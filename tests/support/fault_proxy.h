// SPDX-License-Identifier: Apache-2.0
//
// FaultProxy stands between two processes that talk over TCP and spoils it: it
// listens on a port of its own, connects to the target for each client, and
// forwards with the faults that the test sets, at any time and for each direction.
// It is a process of its own, so that tests may fork and start threads as they
// like; it dies with the thread that made it. A call returns when what it asks for
// is in force. Thread rule: one thread.
#pragma once

#include <sys/types.h>
#include <cstdint>
#include <functional>
#include <optional>
#include "base/clock.h"
#include "base/descriptor.h"

namespace sherd::test {

// Seen from the client, which connected to the proxy.
enum class Direction { kToTarget, kToClient };

// Of one direction. Offsets count the bytes of each connection in this direction,
// from 0; kNever: it does not happen. What comes before an offset arrives, so 0
// acts at once on what is open.
struct Faults {
  static constexpr std::int64_t kNever = -1;

  // Every piece is late by so much, and by up to `jitter` more; order is kept.
  Duration delay{0};
  Duration jitter{0};
  std::int64_t bytes_per_second = 0;  // 0: as fast as can be.
  // Nothing moves, and nothing is lost: a partition that heals when it ends. The
  // sender blocks when buffers are full.
  bool paused = false;
  // From there on bytes, and the end of the stream, vanish; the sender sees no
  // difference. A connection stays so: what came later would be another stream.
  std::int64_t black_hole_after = kNever;
  // Both ends see the connection end, or reset.
  std::int64_t close_after = kNever;
  std::int64_t reset_after = kNever;
  // The receiver sees the end of the stream; the other direction goes on.
  std::int64_t half_close_after = kNever;
  // The lowest bit of this byte is flipped.
  std::int64_t flip_bit_at = kNever;
  // Of frames (net/frame.h) but the greeting, every so manieth comes again, behind
  // so many others; for connections to come.
  std::int64_t frames_again_after = kNever;
  std::int64_t frames_again_every = 1;
  // On how many connections offsets may strike; 0: on all.
  std::int64_t strikes_max = 0;
};

struct FaultCommand;

struct FaultProxyOptions {
  int target_port = 0;     // On 127.0.0.1.
  std::uint64_t seed = 1;  // Of the jitter.
  // Of segments that come to the proxy from either end, whatever is in them, so
  // many are lost, and the kernel has to send them again. See can_lose_segments().
  int segments_lost_per_mille = 0;
};

struct Traffic {
  // By direction: taken from the sender, and given to the receiver.
  std::int64_t bytes_in[2] = {0, 0};
  std::int64_t bytes_out[2] = {0, 0};
  // By direction: connections that a fault at an offset has struck.
  std::int64_t strikes[2] = {0, 0};
  std::int64_t connections = 0;  // Accepted.
  std::int64_t open = 0;         // Of them, now.

  bool operator==(const Traffic&) const = default;
};

// Whether this system's sockets can be made to lose what comes to them.
bool can_lose_segments();

class FaultProxy {
 public:
  // Listens on 127.0.0.1. Throws Error when it cannot.
  explicit FaultProxy(const FaultProxyOptions& options);
  // Ends the process, and with it all connections.
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  int port() const { return port_; }
  pid_t pid() const { return pid_; }

  // In place of those that were set; strikes are counted anew.
  void set(Direction direction, const Faults& faults);
  void set_both(const Faults& faults);
  void heal() { set_both(Faults()); }
  // All connections that are open.
  void reset_connections();
  void close_connections();
  // While it refuses, new connections are reset at once; open ones go on.
  void refuse_connections();
  void accept_connections();
  // For connections to come: the target has come back elsewhere.
  void set_target_port(int port);

  Traffic traffic();
  // Looks whenever traffic has changed. False when that has not come true in time.
  bool wait_for(
      const std::function<bool(const Traffic&)>& done,
      Duration patience = std::chrono::seconds(30));

 private:
  Traffic ask(FaultCommand command);
  // None: not before the deadline.
  std::optional<Traffic> answer(Instant deadline);

  std::uint64_t serial_ = 0;  // Of the last command.
  Descriptor control_;
  pid_t pid_ = -1;
  int port_ = 0;
};

}  // namespace sherd::test
