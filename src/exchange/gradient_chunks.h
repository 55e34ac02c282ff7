// SPDX-License-Identifier: Apache-2.0
//
// How a flat's gradients are cut into messages: large parameters by themselves, so that they can be
// sent from where autograd made them, and the others together from the slot. The cut depends only
// on the layout, so sender and receiver cut in the same way, whatever gradients a rank has. Thread
// rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>
#include "exchange/exchange.h"

namespace sherd::exchange {

struct GradientChunk {
  plan::ElementRange range;  // Of the flat.
  int parameter = -1;        // The parameter that is sent alone; -1: several.
};

// Ascending and adjacent, covering the whole flat; none is empty.
std::vector<GradientChunk> chunks_of(const FlatSpec& flat);

// The part that both have in common; if there is none, an empty part of `a`.
plan::ElementRange intersection(
    const plan::ElementRange& a, const plan::ElementRange& b);

}  // namespace sherd::exchange
