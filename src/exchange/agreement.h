// SPDX-License-Identifier: Apache-2.0
//
// How ranks agree on the next collective step when gathers are made on demand. At each step every
// rank sends the others its request, and all derive the same decision from the same requests. In
// forward all requests must be equal. In backward, ranks whose gradients differ may want different
// units, or no more units: then all ranks first do the request of the lowest such rank, and the
// others request again. A request to start reductions comes after those for units, and before all
// else. Thread rule: pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include "base/flight_recorder.h"
#include "base/status.h"

namespace sherd::exchange {

enum class CollectiveKind : std::uint32_t {
  kUnshard,
  kStartReductions,
  kEndBackward,
  kAllReduce,
};

// Sent as bytes, so it has no padding.
struct CollectiveRequest {
  CollectiveKind kind = CollectiveKind::kUnshard;
  std::int32_t unit = -1;  // For kUnshard.
  std::uint32_t in_backward = 0;
  std::uint32_t numel = 0;           // For kAllReduce.
  std::uint32_t op = 0;              // For kAllReduce: a ScalarReduceOp.
  std::uint32_t full_precision = 0;  // For kUnshard.
  std::uint64_t sequence = 0;        // The number of this step.
  std::uint64_t generation = 0;
  std::uint64_t backward = 0;  // The number of the current or next backward.

  bool operator==(const CollectiveRequest&) const = default;
};
static_assert(std::has_unique_object_representations_v<CollectiveRequest>);

// Returns the request that all ranks do next; those that want something else then request again.
// Returns kPeerMismatch, naming the first difference, if ranks may not differ there. `requests` is
// by rank; `world_ranks` and `unit_names` are for the message. REQUIRES: requests is not empty.
Result<CollectiveRequest> agree(
    std::span<const CollectiveRequest> requests,
    std::span<const int> world_ranks,
    std::span<const std::string> unit_names);

// The purpose of the request, as it is recorded in events.
FlightStep flight_step(const CollectiveRequest& request);

// The rule that a user breaks if other ranks want something else, or nothing: the end of a
// sentence, beginning with "; ". Empty if there is no such rule.
std::string rule_broken_by(const CollectiveRequest& request);

// Returns text such as "unshard unit h.3 in backward (step 7, generation 2, backward 12)".
std::string describe(
    const CollectiveRequest& request, std::span<const std::string> unit_names);

}  // namespace sherd::exchange
