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
  // ---- behaviour ----
  // Where to listen: an address or a name of this host.
  std::string bind_host = "127.0.0.1";
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  int shard_rank = 0;
  // The number of floats in each bucket, which must be the same at all members.
  std::vector<std::int64_t> elements{};
  // The time limit for answers from the members that this one connects to. Members that connect to
  // this one may take longer, since they report first when they cannot. Nobody is blamed before an
  // eighth more has passed, since this process itself may have stood still. All of it is below the
  // coordinator's join_timeout.
  Duration connect_timeout = std::chrono::milliseconds(700);
  // How long sent data may stay unacknowledged before the peer counts as lost. It must be longer
  // than any pause of a healthy peer.
  Duration user_timeout = std::chrono::seconds(5);
  // ---- performance ----
  // Peers on this host read buckets that lie here in place, at a quarter of the cost of TCP, if
  // they have such memory, too. May be null. Must outlive the ring.
  ring::SharedFloats* memory = nullptr;
  // The size of a frame's payload, which must be the same at all members. Smaller frames cost more
  // calls, larger ones leave the cache.
  std::size_t chunk_bytes = std::size_t{512} << 10U;
  // How many slices are in flight at once; in trees at least as many as keep them busy.
  int slots = 8;
};

struct RingMember {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  std::string host;  // join() resolves a name.
  std::uint16_t port = 0;
  RingKey key{};  // The key that its ring was given.
};

struct RingMembership {
  Epoch epoch;
  std::vector<RingMember> members;  // In the order of sums.
};

// Why an epoch ended at this member.
enum class RingFault : std::uint8_t {
  // A member was told to stop or has left; nothing is wrong with it.
  // A member's connection ended without an ending frame.
  kStopped,
  kLost,
  kUnreachable,  // A member could not be connected to.
  kMismatch,     // A member does something other than expected.
  kChecksum,     // Bytes from a member were damaged.
  kWeights,      // No member contributes gradients.
  kResources,    // A member has no descriptor or memory left.
};

struct RingEnding {
  RingFault fault = RingFault::kStopped;
  ReplicaId reporter = 0;  // The first member to notice it, as far as is known.
  ReplicaId accused = 0;   // Accused by the reporter.
  // The last step whose reduction the member finished in the epoch.
  std::int64_t finished_step = 0;
  std::string reason;  // A sentence.
  bool operator==(const RingEnding&) const = default;
};

// Since the ring was created.
struct RingCounters {
  std::uint64_t sent_bytes = 0;  // Bytes of data payloads.
  std::uint64_t received_bytes = 0;
  std::uint64_t shared_bytes = 0;  // Received through shared memory.
  std::uint64_t resent_bytes = 0;  // Sent in repeated attempts at a step.
  std::uint64_t reductions = 0;    // Finished.
  std::uint64_t stale_frames = 0;
  std::uint64_t stale_connections = 0;
  std::uint64_t refused_connections = 0;  // Unknown clients and second ones.
  std::uint64_t silent_connections = 0;
};

// The progress of the reduction under way, for reports of hangs.
struct RingProgress {
  std::optional<Attempt> attempt;  // Nullopt if no reduction is under way.
  // The member whose data, or whose reading, it waits for; nullopt if it waits for this rank's
  // buckets.
  std::optional<ReplicaId> waits_for;
  bool to_read = false;  // It waits for that member to read.
  // The links also between reductions, with their data frames since the epoch began, and the bucket
  // of the oldest unfinished slice, without its unit. Nullopt if not connected.
  std::optional<RingPosition> place;
  // How fast data arrive from this member's senders, as far as known.
  std::vector<LinkSpeed> speeds;
};

}  // namespace sherd::ft
