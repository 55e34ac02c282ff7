// SPDX-License-Identifier: Apache-2.0
//
// The collectives that move a flat over a backend of c10d, put into the current stream: a gather
// straight into the place of the whole flat, and sums of its gradients, for their owners or for all.
// One call where all shards are equally long, else one for each owner. Nothing here waits. Thread
// rule: one thread a backend.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include "plan/flat_layout.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace sherd::exchange {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// Fills `whole` from all ranks' shards. `shard` is this rank's, of the same dtype, and lies elsewhere.
void gather_flat(
    const BackendPtr& backend,
    const plan::FlatLayout& layout,
    const at::Tensor& shard,
    const at::Tensor& whole);

// Returns the sum of all ranks' elements that this rank owns: `into`, of their number and dtype, if it
// is defined and all ranks own equally many. Overwrites `gradient` or not. In what order and precision
// it adds is the backend's choice.
at::Tensor sum_for_owner(
    const BackendPtr& backend,
    const plan::FlatLayout& layout,
    const at::Tensor& gradient,
    const at::Tensor& into = {});

// The same for all elements: every rank gets them, in place.
void sum_for_all(const BackendPtr& backend, const at::Tensor& gradient);

}  // namespace sherd::exchange
