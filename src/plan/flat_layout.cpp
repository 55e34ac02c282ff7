// SPDX-License-Identifier: Apache-2.0
#include "plan/flat_layout.h"

#include <algorithm>
#include <numeric>
#include "base/check.h"
#include "plan/arithmetic.h"
#include "plan/equal_counts.h"
#include "plan/padding_reason.h"
#include "plan/shard_cuts.h"

namespace sherd::plan {
namespace {

constexpr std::int64_t kFlatBytesMax = std::int64_t{1} << 56;
constexpr std::int64_t kAlignmentBytesMax = std::int64_t{1} << 20;

struct Alignments {  // In elements.
  std::int64_t parameter = 1;
  std::int64_t slice = 1;
};

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

Alignments alignments_of(const FlatLayoutOptions& options) {
  const auto elements = [&](std::int64_t bytes) {
    return bytes / std::gcd(bytes, options.element_bytes);
  };
  return {
      elements(options.parameter_alignment_bytes),
      elements(options.slice_alignment_bytes)};
}

FlatLayout pack(
    std::span<const FlatParameter> parameters, std::int64_t alignment) {
  FlatLayout layout;
  std::int64_t used = 0;
  for (const FlatParameter& parameter : parameters) {
    const std::int64_t offset = round_up(layout.numel, alignment);
    layout.offsets.push_back(offset);
    layout.numels.push_back(parameter.numel);
    layout.numel = offset + parameter.numel;
    used += parameter.numel;
  }
  layout.padding.parameter_alignment = layout.numel - used;
  return layout;
}

std::vector<Block> blocks_of(std::span<const FlatParameter> parameters) {
  std::vector<Block> blocks;
  for (const FlatParameter& parameter : parameters) {
    const std::int64_t whole = std::max<std::int64_t>(parameter.numel, 1);
    blocks.push_back({parameter.numel, std::min(parameter.granularity, whole)});
  }
  return blocks;
}

// Moves the parameters of a packed flat to where equal shares allow them.
void cut_equal(
    FlatLayout& layout,
    std::span<const FlatParameter> parameters,
    const FlatLayoutOptions& options,
    const Alignments& alignments) {
  const std::int64_t step = lcm_capped(alignments.slice, alignments.parameter);
  const EqualCounts planner(
      blocks_of(parameters), {.ranks = options.ranks,
                              .start_alignment = alignments.parameter,
                              .share_alignment = step});
  const std::int64_t share = planner.smallest_share();
  const std::int64_t even =
      round_up(divide_up(layout.numel, options.ranks), step);
  if (multiply_capped(share, options.ranks) >
      kFlatBytesMax / options.element_bytes) {
    throw_too_large(
        str(options.ranks, " equal shards of ", share, " elements"));
  }
  layout.padding.equal_counts = even * options.ranks - layout.numel;
  layout.padding.granularity = (share - even) * options.ranks;
  layout.offsets = planner.starts(share).value();
  layout.numel = share * options.ranks;
  for (int rank = 0; rank <= options.ranks; ++rank) {
    layout.cuts.push_back(share * rank);
  }
}

void check_rank(const FlatLayout& layout, int rank) {
  SHERD_CHECK(
      rank >= 0 && rank < layout.ranks(), "[plan] a flat cut for ",
      layout.ranks(), " ranks has no rank ", rank);
}

}  // namespace

FlatLayout plan_flat_layout(
    std::span<const FlatParameter> parameters,
    const FlatLayoutOptions& options) {
  check_options(options);
  check_parameters(parameters, options);
  const Alignments alignments = alignments_of(options);
  FlatLayout layout = pack(parameters, alignments.parameter);
  if (layout.numel > kFlatBytesMax / options.element_bytes) {
    throw_too_large("parameter alignment");
  }
  if (options.counts == CountRule::kEqual) {
    cut_equal(layout, parameters, options, alignments);
  } else {
    layout.cuts =
        shard_cuts(layout, parameters, options.ranks, alignments.slice);
  }
  layout.padding.reason = padding_reason(
      layout, parameters,
      {.start = alignments.parameter,
       .share = lcm_capped(alignments.slice, alignments.parameter)});
  return layout;
}

ParameterSlice parameter_slice(
    const FlatLayout& layout, int parameter, int rank) {
  SHERD_CHECK(
      parameter >= 0 && parameter < layout.parameters(), "[plan] a flat of ",
      layout.parameters(), " parameters has no parameter ", parameter);
  check_rank(layout, rank);
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

std::vector<ParameterSlice> slices_of_rank(const FlatLayout& layout, int rank) {
  check_rank(layout, rank);
  const ElementRange shard = layout.shard(rank);
  // The parameter the shard starts in is the last that starts no later.
  const auto after = std::upper_bound(
      layout.offsets.begin(), layout.offsets.end(), shard.begin);
  const auto first = static_cast<int>(after - layout.offsets.begin()) - 1;
  std::vector<ParameterSlice> slices;
  for (int p = std::max(first, 0);
       p < layout.parameters() &&
       layout.offsets[static_cast<std::size_t>(p)] < shard.end;
       ++p) {
    const ParameterSlice slice = parameter_slice(layout, p, rank);
    if (!slice.in_shard.empty()) {
      slices.push_back(slice);
    }
  }
  return slices;
}

std::vector<ElementRange> contiguous_runs(
    const FlatLayout& layout, int rank, std::span<const int> parameters) {
  std::vector<ElementRange> runs;
  bool join = false;  // The slice before this one ends the last run.
  for (const ParameterSlice& slice : slices_of_rank(layout, rank)) {
    const bool wanted = std::binary_search(
        parameters.begin(), parameters.end(), slice.parameter);
    if (wanted && join) {
      runs.back().end = slice.in_shard.end;
    } else if (wanted) {
      runs.push_back(slice.in_shard);
    }
    join = wanted;
  }
  return runs;
}

int owner_of(const FlatLayout& layout, std::int64_t element) {
  SHERD_CHECK(
      element >= 0 && element < layout.numel, "[plan] a flat of ", layout.numel,
      " elements has no element ", element);
  const auto after =
      std::upper_bound(layout.cuts.begin(), layout.cuts.end(), element);
  return static_cast<int>(after - layout.cuts.begin()) - 1;
}

}  // namespace sherd::plan
