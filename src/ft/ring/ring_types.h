// SPDX-License-Identifier: Apache-2.0
//
// What a ring is told and what it tells: its options, epochs, failures and
// figures. Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "base/clock.h"
#include "ft/protocol/identity.h"

namespace sherd::ft {

namespace ring {
class SharedFloats;
}

struct RingOptions {
  // Behaviour. Where to listen, as an address or a name of this host.
  std::string bind_host = "127.0.0.1";
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  int shard_rank = 0;
  // Until both neighbours of an epoch are connected.
  Duration connect_timeout = std::chrono::seconds(2);
  // What is sent and never acknowledged: the peer is lost. Longer than any pause
  // of a healthy one.
  Duration user_timeout = std::chrono::seconds(5);
  // Then a quiet connection is asked every second whether its peer is there.
  Duration keep_alive_idle = std::chrono::seconds(2);
  // Performance. What is given from here, neighbours on this host read where it
  // lies, at a quarter of what TCP costs; they must have some too. Null: nothing.
  // Outlives the ring.
  ring::SharedFloats* memory = nullptr;
  // The same at all members. What a frame carries: less costs calls,
  // more leaves the cache.
  std::size_t chunk_bytes = std::size_t{512} << 10U;
  // Slices of chunks that are under way at once.
  int slots = 8;
};

struct RingMember {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::string host;  // A name is looked up by who calls join().
  std::uint16_t port = 0;
};

struct RingMembership {
  Epoch epoch;
  std::vector<RingMember> members;  // In ring order.
};

// Why an epoch came to its end at this member.
enum class RingFault : std::uint8_t {
  kStopped,      // A member was told to stop, or left; it is well.
  kLost,         // A member's connection ended without a word.
  kUnreachable,  // A member could not be connected to.
  kMismatch,     // A member does something else than was expected.
  kChecksum,     // Bytes of a member came damaged.
  kWeights,      // Nobody brings a gradient.
  kResources,    // A member has no descriptor or memory left.
};

// "lost", "checksum".
const char* text_of(RingFault fault);

struct RingFailure {
  Epoch epoch;
  RingFault fault = RingFault::kLost;
  ReplicaId accused = 0;   // By who noticed it first, as far as was heard.
  ReplicaId reporter = 0;  // Who that was.
  std::string reason;      // A sentence.
};

// Since the ring was made.
struct RingCounters {
  std::uint64_t sent_bytes = 0;  // Payloads of data.
  std::uint64_t received_bytes = 0;
  std::uint64_t shared_bytes = 0;   // Of those received, read in shared memory.
  std::uint64_t resent_bytes = 0;  // In attempts of a step that had one before.
  std::uint64_t reductions = 0;    // Finished.
  std::uint64_t failures = 0;      // Told by failed().
  std::uint64_t stops = 0;         // By stop().
  std::uint64_t stale_frames = 0;
  std::uint64_t stale_connections = 0;
  std::uint64_t refused_connections = 0;  // Of strangers, or a second one.
  std::uint64_t silent_connections = 0;
  // Of the last stop() calls.
  Duration stop_p50{};
  Duration stop_p99{};
};

// How far the reduction under way is; for reports of what hangs.
struct RingProgress {
  std::optional<Attempt> attempt;  // None: no reduction is under way.
  std::int64_t slices_done = 0;
  std::int64_t slices = 0;
  // Whose bytes, or whose reading, it waits for; none: for this rank's buckets.
  std::optional<ReplicaId> waits_for;
  bool to_read = false;  // It waits for its reading.
  int bucket = 0;        // Of the oldest slice that is not done.
  // In the ring that it is connected in, also between two reductions; none: it
  // is in none, or alone.
  struct Neighbours {
    Epoch epoch;
    ReplicaId previous = 0;
    ReplicaId next = 0;
    std::uint64_t frames_in = 0;  // Of data, since the epoch began.
    std::uint64_t frames_out = 0;
  };
  std::optional<Neighbours> neighbours;
};

}  // namespace sherd::ft
