// SPDX-License-Identifier: Apache-2.0
//
// The options, epochs, failures and counters of a ring. Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "base/clock.h"
#include "ft/protocol/identity.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

namespace ring {
class SharedFloats;
}

struct RingOptions {
  // Behaviour. Where to listen: an address or a name of this host.
  std::string bind_host = "127.0.0.1";
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  int shard_rank = 0;
  // The time until those that this member dials have answered. Those that dial it may take longer,
  // since they say so first when they cannot. Both are over before the coordinator's join_timeout.
  Duration connect_timeout = std::chrono::milliseconds(700);
  // How long sent data may stay unacknowledged before the peer counts as lost. Longer than any
  // pause of a healthy peer.
  Duration user_timeout = std::chrono::seconds(5);
  // How long a connection is quiet before the kernel probes the peer, every second.
  Duration keep_alive_idle = std::chrono::seconds(2);
  // Performance. Peers on this host read buckets that lie here in place, at a quarter of TCP's
  // cost, when they have such memory too. Null: none. Outlives the ring.
  ring::SharedFloats* memory = nullptr;
  // The same at all members. The size of a frame's payload: smaller ones cost calls, larger ones
  // leave the cache.
  std::size_t chunk_bytes = std::size_t{512} << 10U;
  // Slices in flight at once; in trees at least as many as fill them.
  int slots = 8;
};

struct RingMember {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::string host;  // join() looks a name up.
  std::uint16_t port = 0;
  RingKey key{};  // That its ring was given.
};

struct RingMembership {
  Epoch epoch;
  std::vector<RingMember> members;  // In the order of sums.
};

// Why an epoch ended at this member.
enum class RingFault : std::uint8_t {
  kStopped,      // A member was told to stop, or left; it is well.
  kLost,         // A member's connection ended without a word.
  kUnreachable,  // A member could not be connected to.
  kMismatch,     // A member does something else than was expected.
  kChecksum,     // Bytes of a member came damaged.
  kWeights,      // Nobody brings a gradient.
  kResources,    // A member has no descriptor or memory left.
};

struct RingFailure {
  Epoch epoch;
  RingFault fault = RingFault::kLost;
  ReplicaId accused = 0;   // By the reporter.
  ReplicaId reporter = 0;  // The first member to notice it, as far as is known.
  std::string reason;      // A sentence.
};

// Since the ring was created.
struct RingCounters {
  std::uint64_t sent_bytes = 0;  // Data payloads.
  std::uint64_t received_bytes = 0;
  std::uint64_t shared_bytes = 0;  // Received through shared memory.
  std::uint64_t resent_bytes = 0;  // In attempts at a step that had one before.
  std::uint64_t reductions = 0;    // Finished.
  std::uint64_t stops = 0;         // By stop().
  std::uint64_t stale_frames = 0;
  std::uint64_t stale_connections = 0;
  std::uint64_t refused_connections = 0;  // Unknown clients and second ones.
  std::uint64_t silent_connections = 0;
};

// The progress of the reduction under way, for reports of hangs.
struct RingProgress {
  std::optional<Attempt> attempt;  // None: no reduction is under way.
  std::int64_t slices_done = 0;
  std::int64_t slices = 0;
  // The member whose data, or whose reading, it waits for; none: this rank's buckets.
  std::optional<ReplicaId> waits_for;
  bool to_read = false;  // It waits for that member to read.
  int bucket = 0;        // The oldest unfinished slice's.
  // The peers that are connected, also between reductions, with their data frames since the epoch
  // began; none: not connected, or alone.
  struct Neighbours {
    Epoch epoch;
    std::vector<RingLink> links;
    // How fast data come from those that send to this one, as far as it is known.
    std::vector<LinkSpeed> speeds;
  };
  std::optional<Neighbours> neighbours;
};

}  // namespace sherd::ft
