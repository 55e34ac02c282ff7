// SPDX-License-Identifier: Apache-2.0
//
// How a unit's gradients are cut into messages: large parameters by themselves, so that they can be
// sent from where autograd made them, and the others together from the slot. The cut depends only
// on the layout, so sender and receiver cut in the same way, whatever gradients a rank has. Thread
// rule: functions of their arguments.
#pragma once

#include <cstdint>
#include <vector>
#include "exchange/exchange.h"

namespace sherd::exchange {

struct GradientChunk {
  plan::ElementRange range;  // Of the flat.
  // The one that is sent alone, by its number among the unit's trainable parameters; -1: several.
  int parameter = -1;
};

// By flat: ascending and adjacent, covering the whole flat; none is empty. Frozen flats have none.
std::vector<std::vector<GradientChunk>> chunks_of(const UnitSpec& unit);

// Copies the gradients that `options` has elsewhere, and with a `slot` those that are in it, into
// tensors like a slot's; on a device, in its current stream, those of a flat by one call.
void copy_gradients(
    const UnitSpec& unit,
    const ReduceOptions& options,
    const std::vector<at::Tensor>& into,
    const std::vector<at::Tensor>& slot = {});

// The part that both have in common; if there is none, an empty part of `a`.
plan::ElementRange intersection(
    const plan::ElementRange& a, const plan::ElementRange& b);

}  // namespace sherd::exchange
