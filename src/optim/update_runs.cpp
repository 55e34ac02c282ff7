// SPDX-License-Identifier: Apache-2.0
#include "optim/update_runs.h"

namespace sherd::optim {
namespace {

// The bytes between the end of `before` and the start of `after`; negative if they overlap or
// belong to different storages.
std::int64_t gap_bytes(
    const SliceUpdate::Location& before,
    std::int64_t bytes,
    const SliceUpdate::Location& after) {
  if (before.storage != after.storage) {
    return -1;
  }
  return static_cast<std::int64_t>(after.address - before.address) - bytes;
}

// Empty if one kernel call may continue from `before` to `after`.
std::string_view why_apart(
    const SliceUpdate& before, const SliceUpdate& after) {
  if (!after.has_gradient) {
    return "the next piece has no gradient";
  }
  if (before.kind != after.kind) {
    return "the next piece has other settings";
  }
  if (before.updates != after.updates) {
    return "the next piece was updated another number of times";
  }
  const std::int64_t gap =
      gap_bytes(before.parameter, before.bytes, after.parameter);
  if (gap < 0 || gap > kPaddingBytesMax) {
    return "the next parameter lies elsewhere";
  }
  if (gap_bytes(before.gradient, before.bytes, after.gradient) != gap) {
    return "the next gradient lies elsewhere";
  }
  if (gap_bytes(before.state, before.bytes, after.state) != gap) {
    return "the next state lies elsewhere";
  }
  if (gap > before.zero_bytes_after) {
    return "the bytes between are not zero";
  }
  return {};
}

}  // namespace

std::vector<UpdateRun> plan_update_runs(
    const std::vector<SliceUpdate>& pieces) {
  std::vector<UpdateRun> runs;
  bool open = false;  // Whether the last run may continue.
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const SliceUpdate& piece = pieces[i];
    if (!piece.has_gradient) {
      open = false;
      continue;
    }
    if (!open) {
      runs.emplace_back().first = i;
    }
    UpdateRun& run = runs.back();
    run.count += 1;
    run.bytes =
        static_cast<std::int64_t>(
            piece.parameter.address - pieces[run.first].parameter.address) +
        piece.bytes;
    run.ends_because = i + 1 == pieces.size() ? "there is no next piece"
                                              : why_apart(piece, pieces[i + 1]);
    open = run.ends_because.empty();
  }
  return runs;
}

}  // namespace sherd::optim
