// SPDX-License-Identifier: Apache-2.0
//
// How ranks agree on the next collective step when gathers are made on demand. At each step every
// rank sends the others its request, and all derive the same decision from the same requests. In
// forward all requests must be equal. In backward ranks whose gradients differ may want different
// units, or none any more: the request of the lowest such rank is done first, by all, and the others
// request again. Pure. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include "base/flight_recorder.h"

namespace sherd::exchange {

enum class CollectiveKind : std::uint32_t {
  kUnshard,
  kEndBackward,
  kAllReduce,
};

// Travels as bytes: no padding.
struct CollectiveRequest {
  CollectiveKind kind = CollectiveKind::kUnshard;
  std::int32_t unit = -1;  // kUnshard.
  std::uint32_t in_backward = 0;
  std::uint32_t numel = 0;           // kAllReduce.
  std::uint32_t op = 0;              // kAllReduce: a ScalarReduceOp.
  std::uint32_t full_precision = 0;  // kUnshard.
  std::uint64_t sequence = 0;        // Number of this step.
  std::uint64_t generation = 0;
  std::uint64_t backward = 0;  // Number of the backward under way, or next.

  bool operator==(const CollectiveRequest&) const = default;
};
static_assert(std::has_unique_object_representations_v<CollectiveRequest>);

enum class AgreementOutcome {
  kAllAgree,  // Every rank wants the same: do it.
  kAssist,  // Do `request` for the ranks that want it; the others request again.
  kMismatch,  // Fail: `reason` names the first difference.
};

struct Agreement {
  AgreementOutcome verdict = AgreementOutcome::kAllAgree;
  CollectiveRequest request;
  std::string reason;
};

// By rank; `world_ranks` and `unit_names` are for the sentence.
// REQUIRES: requests is not empty.
Agreement agree(
    std::span<const CollectiveRequest> requests,
    std::span<const int> world_ranks,
    std::span<const std::string> unit_names);

// What the request is for, as a record of events has it.
FlightStep flight_step(const CollectiveRequest& request);

// What the user is told when others want something else, or nothing: the tail
// of a sentence, beginning with "; ". Empty where there is no such rule.
std::string rule_broken_by(const CollectiveRequest& request);

// e.g. "unshard unit h.3 in backward (step 7, generation 2, backward 12)".
std::string describe(
    const CollectiveRequest& request, std::span<const std::string> unit_names);

}  // namespace sherd::exchange
