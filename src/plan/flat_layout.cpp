// SPDX-License-Identifier: Apache-2.0
#include "plan/flat_layout.h"

#include <algorithm>
#include <numeric>
#include "base/check.h"
#include "plan/arithmetic.h"
#include "plan/shard_cuts.h"

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
