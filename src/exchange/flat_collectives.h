// SPDX-License-Identifier: Apache-2.0
//
// The collectives that move a flat over a backend of c10d, queued on the current stream: a gather
// straight into the memory of the whole flat, and sums of its gradients, for their owners or for
// all ranks. They make one call if all shards are equally long, otherwise one for each owner.
// Nothing here waits. Thread rule: one thread per backend.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include "plan/flat_layout.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace sherd::exchange {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// Fills `whole` from all ranks' shards. `shard` is this rank's, has the same dtype, and does not
// lie in `whole`.
void gather_flat(
    const BackendPtr& backend,
    const plan::FlatLayout& layout,
    const at::Tensor& shard,
    const at::Tensor& whole);

// Returns the sum over ranks of the elements that this rank owns. It is `into`, which has their
// number and dtype, if that is defined and all ranks own equally many. May overwrite `gradient`.
// The backend chooses the order and the precision of the sum.
at::Tensor sum_for_owner(
    const BackendPtr& backend,
    const plan::FlatLayout& layout,
    const at::Tensor& gradient,
    const at::Tensor& into = {});

// The same for all elements: every rank gets the sums, in place.
void sum_for_all(const BackendPtr& backend, const at::Tensor& gradient);

// The same sums, made in rank order and in fp32 (fp64 for fp64), which is their dtype, as by
// world::sum_in_rank_order() on the CPU. They need memory for all pieces that a rank sums, and for
// all ranks twice as much sent.
at::Tensor sum_for_owner_in_rank_order(
    const BackendPtr& backend,
    const plan::FlatLayout& layout,
    const at::Tensor& gradient);
at::Tensor sum_for_all_in_rank_order(
    const BackendPtr& backend,
    const plan::FlatLayout& layout,
    const at::Tensor& gradient);

}  // namespace sherd::exchange
