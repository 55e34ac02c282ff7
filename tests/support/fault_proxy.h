// SPDX-License-Identifier: Apache-2.0
//
// FaultProxy stands between two processes that communicate over TCP and injects faults: it listens
// on a port of its own, connects to the target for each client, and forwards with the faults that
// the test sets, at any time and for each direction. It is a process of its own, so that tests may
// fork and start threads as they like; it dies with the thread that made it. A call returns when
// its effect is in force. Thread rule: one thread.
#pragma once

#include <sys/types.h>
#include <cstdint>
#include <functional>
#include <optional>
#include "base/clock.h"
#include "base/descriptor.h"

namespace sherd::test {

// As seen from the client, which connected to the proxy.
enum class Direction { kToTarget, kToClient };

// The faults of one direction. Offsets count the bytes of each connection in this direction, from
// 0; kNever means that the fault does not happen. What comes before an offset arrives, so 0 acts at
// once on open connections.
struct Faults {
  static constexpr std::int64_t kNever = -1;

  // Every piece is delayed by this time, plus up to `jitter`; order is kept.
  Duration delay{0};
  Duration jitter{0};
  std::int64_t bytes_per_second = 0;  // 0 means no limit.
  // Nothing moves, but nothing is lost: a partition that heals when it ends. The sender blocks when
  // buffers are full.
  bool paused = false;
  // From this offset on, bytes and the end of the stream vanish, while the sender sees no
  // difference. A connection stays like that, since later bytes would be another stream.
  std::int64_t black_hole_after = kNever;
  // Both ends see the connection closed, or reset.
  std::int64_t close_after = kNever;
  std::int64_t reset_after = kNever;
  // The receiver sees the end of the stream; the other direction continues.
  std::int64_t half_close_after = kNever;
  // The lowest bit of this byte is flipped.
  std::int64_t flip_bit_at = kNever;
  // Repeats every n-th frame (net/frame.h) except the greeting, after this many others; for new
  // connections.
  std::int64_t frames_again_after = kNever;
  std::int64_t frames_again_every = 1;
  // On how many connections offsets may strike; 0 means all.
  std::int64_t strikes_max = 0;
};

struct FaultCommand;

struct FaultProxyOptions {
  int target_port = 0;     // On 127.0.0.1.
  std::uint64_t seed = 1;  // Used for the jitter.
  // How many of a thousand segments that come to the proxy from either end are lost, whatever is in
  // them, so that the kernel has to send them again. See can_lose_segments().
  int segments_lost_per_mille = 0;
};

struct Traffic {
  // By direction: bytes taken from the sender, and bytes given to the receiver.
  std::int64_t bytes_in[2] = {0, 0};
  std::int64_t bytes_out[2] = {0, 0};
  // By direction: how many connections a fault at an offset has struck.
  std::int64_t strikes[2] = {0, 0};
  std::int64_t connections = 0;  // Accepted so far.
  std::int64_t open = 0;         // Open now.

  bool operator==(const Traffic&) const = default;
};

// Whether sockets of this system can be made to lose segments that come to them.
bool can_lose_segments();

class FaultProxy {
 public:
  // Listens on 127.0.0.1. Throws Error if it cannot.
  explicit FaultProxy(const FaultProxyOptions& options);
  // Ends the process and with it all connections.
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  int port() const { return port_; }
  pid_t pid() const { return pid_; }

  // Replaces the faults that were set; strikes are counted from 0 again.
  void set(Direction direction, const Faults& faults);
  void set_both(const Faults& faults);
  void heal() { set_both(Faults()); }
  // Resets all open connections.
  void reset_connections();
  void close_connections();
  // While it refuses, new connections are reset at once; open ones continue.
  void refuse_connections();
  void accept_connections();
  // For new connections: the target has come back on another port.
  void set_target_port(int port);

  Traffic traffic();
  // Checks whenever traffic has changed. Returns false if the condition has not come true in time.
  bool wait_for(
      const std::function<bool(const Traffic&)>& done,
      Duration patience = std::chrono::seconds(30));

 private:
  Traffic ask(FaultCommand command);
  // Nullopt if there is none before the deadline.
  std::optional<Traffic> answer(Instant deadline);

  std::uint64_t serial_ = 0;  // That of the last command.
  Descriptor control_;
  pid_t pid_ = -1;
  int port_ = 0;
};

}  // namespace sherd::test
