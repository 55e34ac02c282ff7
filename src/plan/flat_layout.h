// SPDX-License-Identifier: Apache-2.0
//
// The layout of a flat parameter: where each parameter starts in it, and where it is cut into one
// shard per rank. Parameters keep module order, start aligned, and may have a granularity: blocks
// of elements that no cut splits. Shards may differ in size, so only alignment costs padding. All
// numbers count elements unless their name says bytes. Equal arguments give equal layouts, so ranks
// need not exchange them. Thread rule: pure functions and values.
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
  // No cut falls inside a block of this many elements, counted from the parameter's start (the last
  // block may be shorter). If it is at least numel, the parameter stays whole.
  std::int64_t granularity = 1;
};

struct FlatLayoutOptions {
  int ranks = 1;
  std::int64_t element_bytes = 4;
  // Parameters start at multiples of this; each may cost up to this much padding.
  std::int64_t parameter_alignment_bytes = 64;
  // Shards start at multiples of this, as long as the balance hardly suffers.
  std::int64_t slice_alignment_bytes = 128;
};

// [begin, end); empty if they are equal.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t numel() const { return end - begin; }
  bool empty() const { return begin == end; }
  bool operator==(const ElementRange&) const = default;
};

struct FlatLayout {
  // By parameter, in the order given, ascending. The offset of an empty parameter may equal that of
  // the next one, or the end of the flat. Elements between two parameters are padding, which is
  // zero.
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> numels;
  std::int64_t numel = 0;  // Including padding.
  // ranks + 1 values, ascending from 0 to numel; rank r owns [cuts[r], cuts[r + 1]), which may be
  // empty.
  std::vector<std::int64_t> cuts;

  int ranks() const { return static_cast<int>(cuts.size()) - 1; }
  int parameters() const { return static_cast<int>(offsets.size()); }
  // REQUIRES: 0 <= rank < ranks().
  ElementRange shard(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return {cuts[r], cuts[r + 1]};
  }
};

// A rank's part of one parameter, as two ranges of the same length.
struct ParameterSlice {
  int parameter = 0;
  ElementRange in_parameter;  // From the parameter's first element.
  ElementRange in_shard;      // From the shard's first element.
};

// Throws Error if an option or a parameter makes no sense, or if the flat would be larger than 2^56
// bytes.
FlatLayout plan_flat_layout(
    std::span<const FlatParameter> parameters,
    const FlatLayoutOptions& options);

// The part of `parameter` that `rank` owns; both ranges are [0, 0) if it owns none. Throws unless
// both exist in the layout.
ParameterSlice parameter_slice(
    const FlatLayout& layout, int parameter, int rank);

}  // namespace sherd::plan
