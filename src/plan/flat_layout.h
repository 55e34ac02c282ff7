// SPDX-License-Identifier: Apache-2.0
//
// FlatLayout says where each parameter of a flat lies and where the flat is cut
// into one shard per rank. Parameters keep module order and start aligned; a
// parameter's granularity is the number of elements no cut may split. Where the
// transport moves unequal counts that costs no padding; where every rank needs
// the same count the planner of equal_counts.h keeps the padding small and the
// report says what caused it. Everything is counted in elements unless it says
// bytes, and depends on the arguments only, so every rank gets the same layout.
// Thread rule: pure functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sherd::plan {

struct FlatParameter {
  std::string name;
  std::int64_t numel = 0;
  // No cut falls inside a block of this many elements, counted from the
  // parameter's start (the last block may be shorter). At least numel: whole.
  std::int64_t granularity = 1;
};

enum class CountRule {
  kUnequal,  // Shared memory, point-to-point: any count, none included.
  kEqual,    // Collectives: the same count on every rank.
};

struct FlatLayoutOptions {
  // Behaviour.
  int ranks = 1;
  std::int64_t element_bytes = 4;
  CountRule counts = CountRule::kUnequal;
  // Performance. Where parameters start; costs up to this much each.
  std::int64_t parameter_alignment_bytes = 64;
  // Where shards start. Equal counts: always, costs up to this much per rank.
  // Unequal counts: where the balance hardly suffers.
  std::int64_t slice_alignment_bytes = 128;
};

// [begin, end); empty when they are equal.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t numel() const { return end - begin; }
  bool empty() const { return begin == end; }
  bool operator==(const ElementRange&) const = default;
};

// Elements that belong to no parameter, by cause. Written as zero.
struct Padding {
  std::int64_t parameter_alignment = 0;  // Between parameters, to align them.
  std::int64_t equal_counts = 0;         // To make aligned shards of one size.
  std::int64_t granularity = 0;          // What blocks cost on top of that.
  // One sentence that names each cause: which parameter, which multiple.
  std::string reason;

  std::int64_t total() const {
    return parameter_alignment + equal_counts + granularity;
  }
};

struct FlatLayout {
  // By parameter, in the order given. Offsets ascend; one of an empty
  // parameter may equal the next one's, or the end of the flat.
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> numels;
  std::int64_t numel = 0;  // Padding included.
  // ranks + 1 values, ascending from 0 to numel; rank r owns
  // [cuts[r], cuts[r + 1]), which may be empty.
  std::vector<std::int64_t> cuts;
  Padding padding;

  int ranks() const { return static_cast<int>(cuts.size()) - 1; }
  int parameters() const { return static_cast<int>(offsets.size()); }
  // REQUIRES: 0 <= rank < ranks().
  ElementRange shard(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return {cuts[r], cuts[r + 1]};
  }
};

// A rank's part of one parameter, seen from both sides; equally long.
struct ParameterSlice {
  int parameter = 0;
  ElementRange in_parameter;  // From the parameter's first element.
  ElementRange in_shard;      // From the shard's first element.
};

// Throws Error when an option or a parameter makes no sense, or when the flat
// would not fit 2^56 bytes.
FlatLayout plan_flat_layout(
    std::span<const FlatParameter> parameters,
    const FlatLayoutOptions& options);

// The part of `parameter` that `rank` owns; both ranges are [0, 0) when it owns
// none. Throws unless both exist in the layout.
ParameterSlice parameter_slice(
    const FlatLayout& layout, int parameter, int rank);

// The slices `rank` owns, empty ones left out, in flat order.
std::vector<ParameterSlice> slices_of_rank(const FlatLayout& layout, int rank);

// Ranges of the rank's shard that hold the given parameters (ascending), as few
// as possible: neighbours with nothing but padding between them become one run,
// padding included. For element-wise kernels, which keep zeros zero.
std::vector<ElementRange> contiguous_runs(
    const FlatLayout& layout, int rank, std::span<const int> parameters);

// The rank whose shard holds `element`. Throws unless 0 <= element < numel.
int owner_of(const FlatLayout& layout, std::int64_t element);

}  // namespace sherd::plan
