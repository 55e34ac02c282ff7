// SPDX-License-Identifier: Apache-2.0
#include "plan/flat_layout.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include "base/check.h"
#include "plan/arithmetic.h"

namespace sherd::plan {
namespace {

constexpr std::int64_t kFlatBytesMax = std::int64_t{1} << 56;
constexpr std::int64_t kAlignmentBytesMax = std::int64_t{1} << 20;

void check_options(const FlatLayoutOptions& options) {
  SHERD_CHECK(
      options.ranks >= 1, "[plan] a flat is cut for at least 1 rank, got ",
      options.ranks);
  SHERD_CHECK(
      options.element_bytes >= 1 && options.element_bytes <= kAlignmentBytesMax,
      "[plan] an element has 1 to ", kAlignmentBytesMax, " bytes, got ",
      options.element_bytes);
  for (const std::int64_t bytes :
       {options.parameter_alignment_bytes, options.slice_alignment_bytes}) {
    SHERD_CHECK(
        bytes >= 1 && bytes <= kAlignmentBytesMax,
        "[plan] an alignment is 1 to ", kAlignmentBytesMax, " bytes, got ",
        bytes);
  }
}

[[noreturn]] void throw_too_large(const std::string& what) {
  throw Error(
      str("[plan] a flat holds at most ", kFlatBytesMax, " bytes; ", what,
          " would exceed that"));
}

void check_parameters(
    std::span<const FlatParameter> parameters,
    const FlatLayoutOptions& options) {
  const std::int64_t numel_max = kFlatBytesMax / options.element_bytes;
  std::int64_t left = numel_max;
  for (const FlatParameter& parameter : parameters) {
    SHERD_CHECK(
        parameter.numel >= 0, "[plan] parameter '", parameter.name,
        "' has a negative number of elements: ", parameter.numel);
    SHERD_CHECK(
        parameter.granularity >= 1, "[plan] parameter '", parameter.name,
        "' asks for blocks of ", parameter.granularity,
        " elements; expected at least 1");
    if (parameter.numel > left) {
      throw_too_large(str("parameter '", parameter.name, "'"));
    }
    left -= parameter.numel;
  }
}

// The fewest elements whose bytes are a multiple of `bytes`.
std::int64_t alignment_of(
    std::int64_t bytes, const FlatLayoutOptions& options) {
  return bytes / std::gcd(bytes, options.element_bytes);
}

FlatLayout pack(
    std::span<const FlatParameter> parameters, std::int64_t alignment) {
  FlatLayout layout;
  for (const FlatParameter& parameter : parameters) {
    const std::int64_t offset = round_up(layout.numel, alignment);
    layout.offsets.push_back(offset);
    layout.numels.push_back(parameter.numel);
    layout.numel = offset + parameter.numel;
  }
  return layout;
}

// A cut moves to an aligned place only if that shifts it by at most this part of an even share, so
// tiny flats are spread evenly and large ones are aligned.
constexpr std::int64_t kAlignedCutShift = 16;

// The last parameter that starts at or before `element`; there must be one.
std::size_t parameter_at(const FlatLayout& layout, std::int64_t element) {
  const auto after =
      std::upper_bound(layout.offsets.begin(), layout.offsets.end(), element);
  return static_cast<std::size_t>(after - layout.offsets.begin()) - 1;
}

// Chooses the cuts of a packed flat, one boundary at a time: each is at the legal place nearest to
// its even share, so that no shard exceeds an even one by more than about one block. In large flats
// cuts prefer aligned places.
struct ShardCuts {
  // Ascends with rank. Proof: nearest_legal() ascends with its target and keeps a legal target. An
  // aligned cut is legal and less than a share away from its target, so neighbouring targets lie on
  // both sides of it.
  std::int64_t cut(int rank) const {
    const std::int64_t target = ideal(rank);
    const std::int64_t aligned = nearest_aligned(target);
    const std::int64_t shift_max = layout.numel / ranks / kAlignedCutShift;
    if (std::abs(aligned - target) <= shift_max && is_legal(aligned)) {
      return aligned;
    }
    return nearest_legal(target);
  }

  // floor(rank * numel / ranks) without the product.
  std::int64_t ideal(int rank) const {
    const std::int64_t share = layout.numel / ranks;
    const std::int64_t rest = layout.numel % ranks;
    return share * rank + rest * rank / ranks;
  }

  std::int64_t nearest_aligned(std::int64_t target) const {
    const std::int64_t below = target / slice_alignment * slice_alignment;
    const std::int64_t above = below + slice_alignment;
    return above <= layout.numel && above - target < target - below ? above
                                                                    : below;
  }

  // Between two parameters, the only legal place is the start of the second.
  bool is_legal(std::int64_t place) const {
    const std::size_t p = parameter_at(layout, place);
    const std::int64_t inside = place - layout.offsets[p];
    return inside == 0 || place == layout.numel ||
        (inside < layout.numels[p] && inside % parameters[p].granularity == 0);
  }

  // Inside a parameter: one of the two block boundaries around the target. Instead of the
  // parameter's end, and in the padding after it: the start of the next parameter.
  std::int64_t nearest_legal(std::int64_t target) const {
    const std::size_t p = parameter_at(layout, target);
    const std::int64_t offset = layout.offsets[p];
    const std::int64_t granularity = parameters[p].granularity;
    const std::int64_t next =
        p + 1 < layout.offsets.size() ? layout.offsets[p + 1] : layout.numel;
    if (target >= offset + layout.numels[p]) {
      return next;
    }
    const std::int64_t block = (target - offset) / granularity;
    const std::int64_t below = offset + block * granularity;
    const std::int64_t left = offset + layout.numels[p] - below;
    const std::int64_t above = granularity < left ? below + granularity : next;
    return target - below <= above - target ? below : above;
  }

  const FlatLayout& layout;
  std::span<const FlatParameter> parameters;
  const std::int64_t ranks;
  const std::int64_t slice_alignment;
};

// ranks + 1 ascending values from 0 to layout.numel.
std::vector<std::int64_t> shard_cuts(
    const FlatLayout& layout,
    std::span<const FlatParameter> parameters,
    int ranks,
    std::int64_t slice_alignment) {
  std::vector<std::int64_t> cuts{0};
  const ShardCuts cutter{layout, parameters, ranks, slice_alignment};
  for (int rank = 1; rank < ranks; ++rank) {
    cuts.push_back(layout.numel == 0 ? 0 : cutter.cut(rank));
    SHERD_ASSERT(cuts.back() >= cuts[cuts.size() - 2], "cuts ascend");
  }
  cuts.push_back(layout.numel);
  return cuts;
}

}  // namespace

FlatLayout plan_flat_layout(
    std::span<const FlatParameter> parameters,
    const FlatLayoutOptions& options) {
  check_options(options);
  check_parameters(parameters, options);
  FlatLayout layout = pack(
      parameters, alignment_of(options.parameter_alignment_bytes, options));
  if (layout.numel > kFlatBytesMax / options.element_bytes) {
    throw_too_large("parameter alignment");
  }
  layout.cuts = shard_cuts(
      layout, parameters, options.ranks,
      alignment_of(options.slice_alignment_bytes, options));
  return layout;
}

ParameterSlice parameter_slice(
    const FlatLayout& layout, int parameter, int rank) {
  SHERD_CHECK(
      parameter >= 0 && parameter < layout.parameters(), "[plan] a flat of ",
      layout.parameters(), " parameters has no parameter ", parameter);
  SHERD_CHECK(
      rank >= 0 && rank < layout.ranks(), "[plan] a flat cut for ",
      layout.ranks(), " ranks has no rank ", rank);
  const auto p = static_cast<std::size_t>(parameter);
  const std::int64_t offset = layout.offsets[p];
  const ElementRange shard = layout.shard(rank);
  const std::int64_t begin = std::max(offset, shard.begin);
  const std::int64_t end = std::min(offset + layout.numels[p], shard.end);
  if (begin >= end) {
    return {.parameter = parameter, .in_parameter = {}, .in_shard = {}};
  }
  return {
      .parameter = parameter,
      .in_parameter = {begin - offset, end - offset},
      .in_shard = {begin - shard.begin, end - shard.begin}};
}

}  // namespace sherd::plan
