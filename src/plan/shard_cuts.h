// SPDX-License-Identifier: Apache-2.0
//
// Cuts a packed flat into one shard per rank: each cut is at the legal place nearest to its even
// share, so that no shard exceeds an even one by more than about one block. In large flats cuts
// prefer aligned places. Thread rule: a pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>
#include "plan/flat_layout.h"

namespace sherd::plan {

// ranks + 1 ascending values from 0 to layout.numel. Reads offsets, numels and numel of `layout`.
// REQUIRES: `parameters` are the layout's own.
std::vector<std::int64_t> shard_cuts(
    const FlatLayout& layout,
    std::span<const FlatParameter> parameters,
    int ranks,
    std::int64_t slice_alignment);

}  // namespace sherd::plan
