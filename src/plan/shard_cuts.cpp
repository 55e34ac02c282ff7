// SPDX-License-Identifier: Apache-2.0
#include "plan/shard_cuts.h"

#include <algorithm>
#include <cstdlib>
#include "base/check.h"

namespace sherd::plan {
namespace {

// A cut moves to an aligned place only if that shifts it by at most this part of an even share, so
// tiny flats are spread evenly and large ones are aligned.
constexpr std::int64_t kAlignedCutShift = 16;

// The last parameter that starts at or before `element`; there must be one.
std::size_t parameter_at(const FlatLayout& layout, std::int64_t element) {
  const auto after =
      std::upper_bound(layout.offsets.begin(), layout.offsets.end(), element);
  return static_cast<std::size_t>(after - layout.offsets.begin()) - 1;
}

// Chooses the cuts of a packed flat, one boundary at a time.
class ShardCuts {
 public:
  ShardCuts(
      const FlatLayout& layout,
      std::span<const FlatParameter> parameters,
      int ranks,
      std::int64_t slice_alignment)
      : layout_(layout),
        parameters_(parameters),
        ranks_(ranks),
        slice_alignment_(slice_alignment) {}

  // Ascends with rank. Proof: nearest_legal() ascends with its target and keeps a legal target. An
  // aligned cut is legal and less than a share away from its target, so neighbouring targets lie on
  // both sides of it.
  std::int64_t cut(int rank) const {
    const std::int64_t target = ideal(rank);
    const std::int64_t aligned = nearest_aligned(target);
    const std::int64_t shift_max = layout_.numel / ranks_ / kAlignedCutShift;
    if (std::abs(aligned - target) <= shift_max && is_legal(aligned)) {
      return aligned;
    }
    return nearest_legal(target);
  }

 private:
  // floor(rank * numel / ranks) without the product.
  std::int64_t ideal(int rank) const {
    const std::int64_t share = layout_.numel / ranks_;
    const std::int64_t rest = layout_.numel % ranks_;
    return share * rank + rest * rank / ranks_;
  }

  std::int64_t nearest_aligned(std::int64_t target) const {
    const std::int64_t below = target / slice_alignment_ * slice_alignment_;
    const std::int64_t above = below + slice_alignment_;
    return above <= layout_.numel && above - target < target - below ? above
                                                                     : below;
  }

  // Between two parameters, the only legal place is the start of the second.
  bool is_legal(std::int64_t place) const {
    const std::size_t p = parameter_at(layout_, place);
    const std::int64_t inside = place - layout_.offsets[p];
    return inside == 0 || place == layout_.numel ||
        (inside < layout_.numels[p] &&
         inside % parameters_[p].granularity == 0);
  }

  // Inside a parameter: one of the two block boundaries around the target. Instead of the
  // parameter's end, and in the padding after it: the start of the next parameter.
  std::int64_t nearest_legal(std::int64_t target) const {
    const std::size_t p = parameter_at(layout_, target);
    const std::int64_t offset = layout_.offsets[p];
    const std::int64_t granularity = parameters_[p].granularity;
    const std::int64_t next =
        p + 1 < layout_.offsets.size() ? layout_.offsets[p + 1] : layout_.numel;
    if (target >= offset + layout_.numels[p]) {
      return next;
    }
    const std::int64_t block = (target - offset) / granularity;
    const std::int64_t below = offset + block * granularity;
    const std::int64_t left = offset + layout_.numels[p] - below;
    const std::int64_t above = granularity < left ? below + granularity : next;
    return target - below <= above - target ? below : above;
  }

  const FlatLayout& layout_;
  std::span<const FlatParameter> parameters_;
  const std::int64_t ranks_;
  const std::int64_t slice_alignment_;
};

}  // namespace

std::vector<std::int64_t> shard_cuts(
    const FlatLayout& layout,
    std::span<const FlatParameter> parameters,
    int ranks,
    std::int64_t slice_alignment) {
  std::vector<std::int64_t> cuts{0};
  const ShardCuts cutter(layout, parameters, ranks, slice_alignment);
  for (int rank = 1; rank < ranks; ++rank) {
    cuts.push_back(layout.numel == 0 ? 0 : cutter.cut(rank));
    SHERD_ASSERT(cuts.back() >= cuts[cuts.size() - 2], "cuts ascend");
  }
  cuts.push_back(layout.numel);
  return cuts;
}

}  // namespace sherd::plan
