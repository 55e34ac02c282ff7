// SPDX-License-Identifier: Apache-2.0
//
// What ranks do next when gathers are made on demand. Before each collective
// step every rank tells the others its wish; from the same wishes every rank
// derives the same decision. In forward all wishes must be equal. In backward
// ranks whose gradients differ may want different units, or none any more: the
// wish of the lowest such rank is served first, by all, and the others wish
// again. Pure. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

namespace sherd::exchange {

enum class WishKind : std::uint32_t {
  kUnshard,
  kEndBackward,
  kAllReduce,
};

// Travels as bytes: no padding.
struct Wish {
  WishKind kind = WishKind::kUnshard;
  std::int32_t unit = -1;  // kUnshard.
  std::uint32_t in_backward = 0;
  std::uint32_t numel = 0;           // kAllReduce.
  std::uint32_t op = 0;              // kAllReduce: a ReduceOp.
  std::uint32_t full_precision = 0;  // kUnshard.
  std::uint64_t sequence = 0;        // Number of this step.
  std::uint64_t generation = 0;
  std::uint64_t backward = 0;  // Number of the backward under way, or next.

  bool operator==(const Wish&) const = default;
};
static_assert(std::has_unique_object_representations_v<Wish>);

enum class Verdict {
  kTogether,  // Everybody wants the same: do it.
  kServe,     // Do `wish` for those who want it; who does not, wishes again.
  kMismatch,  // Never: `reason` names the first difference.
};

struct Agreement {
  Verdict verdict = Verdict::kTogether;
  Wish wish;
  std::string reason;
};

// By rank; `world_ranks` and `unit_names` are for the sentence.
// REQUIRES: wishes is not empty.
Agreement agree(
    std::span<const Wish> wishes,
    std::span<const int> world_ranks,
    std::span<const std::string> unit_names);

// What the user is told when others want something else, or nothing: the tail
// of a sentence, beginning with "; ". Empty where there is no such rule.
std::string rule_broken_by(const Wish& wish);

// e.g. "unshard unit h.3 in backward (step 7, generation 2, backward 12)".
std::string describe(const Wish& wish, std::span<const std::string> unit_names);

}  // namespace sherd::exchange
