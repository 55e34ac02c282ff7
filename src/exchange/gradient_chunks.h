// SPDX-License-Identifier: Apache-2.0
//
// How a flat's gradients are cut into messages: large parameters alone, so that they can be sent from
// where autograd made them, the others together from the slot. The cut depends on the layout only, so
// that sender and receiver cut alike, whatever gradients a rank has. Pure.
#pragma once

#include <cstdint>
#include <vector>
#include "exchange/exchange.h"

namespace sherd::exchange {

struct GradientChunk {
  plan::ElementRange range;  // Of the flat.
  int parameter = -1;        // The one that travels alone; -1: several.
};

// Ascending and side by side, over the whole flat; none is empty.
std::vector<GradientChunk> chunks_of(const FlatSpec& flat);

// What both have in common; where they do not meet, an empty part of `a`.
plan::ElementRange intersection(
    const plan::ElementRange& a, const plan::ElementRange& b);

}  // namespace sherd::exchange
