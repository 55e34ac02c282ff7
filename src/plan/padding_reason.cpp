// SPDX-License-Identifier: Apache-2.0
#include "plan/padding_reason.h"

#include <algorithm>
#include "base/check.h"
#include "plan/arithmetic.h"

namespace sherd::plan {
namespace {

// Ranks that own a part of the parameter, when shares are equal.
std::int64_t ranks_spanned(
    const FlatLayout& layout, std::size_t parameter, std::int64_t share) {
  const std::int64_t begin = layout.offsets[parameter];
  const std::int64_t numel = layout.numels[parameter];
  return numel == 0 ? 0 : (begin + numel - 1) / share - begin / share + 1;
}

// Blocks that lie over two boundaries force shares to a multiple of theirs; the
// parameter with the largest such multiple, or nothing.
std::string spanning_reason(
    const FlatLayout& layout,
    std::span<const FlatParameter> parameters,
    std::int64_t step) {
  const std::int64_t share = layout.shard(0).numel();
  std::string reason;
  std::int64_t worst = step;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const std::int64_t granularity = parameters[p].granularity;
    const std::int64_t multiple = lcm_capped(step, granularity);
    const std::int64_t ranks = ranks_spanned(layout, p, share);
    if (ranks > 2 && multiple > worst) {
      worst = multiple;
      reason =
          str("shares are a multiple of lcm(", step, ", ", granularity,
              ") = ", multiple, " because '", parameters[p].name,
              "' in blocks of ", granularity, " spans ", ranks, " ranks");
    }
  }
  return reason;
}

std::string largest_block_reason(
    std::int64_t share,
    std::span<const FlatParameter> parameters,
    std::int64_t step) {
  for (const FlatParameter& parameter : parameters) {
    const std::int64_t block = std::min(parameter.granularity, parameter.numel);
    if (share == round_up(block, step)) {
      return str(
          "a share holds the largest block, ", block, " elements of '",
          parameter.name, "'");
    }
  }
  return "";
}

std::string widest_gap_reason(
    const FlatLayout& layout, std::span<const FlatParameter> parameters) {
  std::int64_t widest = 0;
  std::int64_t end = 0;
  std::string reason = "no smaller share meets the block boundaries";
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (layout.offsets[p] - end > widest) {
      widest = layout.offsets[p] - end;
      reason =
          str("no smaller share meets the block boundaries; the widest gap is ",
              widest, " before '", parameters[p].name, "'");
    }
    end = layout.offsets[p] + layout.numels[p];
  }
  return reason;
}

std::string granularity_reason(
    const FlatLayout& layout,
    std::span<const FlatParameter> parameters,
    std::int64_t step) {
  std::string reason = spanning_reason(layout, parameters, step);
  if (reason.empty()) {
    reason = largest_block_reason(layout.shard(0).numel(), parameters, step);
  }
  return reason.empty() ? widest_gap_reason(layout, parameters) : reason;
}

}  // namespace

std::string padding_reason(
    const FlatLayout& layout,
    std::span<const FlatParameter> parameters,
    const PaddingSteps& steps) {
  const Padding& padding = layout.padding;
  std::string text;
  const auto add = [&](std::int64_t numel, const std::string& why) {
    text += str(text.empty() ? "" : "; ", numel, " elements: ", why);
  };
  if (padding.parameter_alignment > 0) {
    add(padding.parameter_alignment,
        str("parameters start at multiples of ", steps.start));
  }
  if (padding.equal_counts > 0) {
    add(padding.equal_counts,
        str(layout.ranks(), " equal shards, each a multiple of ", steps.share));
  }
  if (padding.granularity > 0) {
    add(padding.granularity,
        granularity_reason(layout, parameters, steps.share));
  }
  return text.empty() ? "no padding" : text;
}

}  // namespace sherd::plan
