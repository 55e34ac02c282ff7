// SPDX-License-Identifier: Apache-2.0
//
// The two collectives of bytes of which all others consist. In all_to_all() each rank gets a piece
// from each other one: all-gather, broadcast, gather, scatter, all-to-all. In reduce() each rank
// reduces its slice of all inputs, in rank order: reduce-scatter, all-reduce, reduce. Small pieces
// go through the segment; large ones from process to process if the kernel allows that, otherwise
// through the segment in rounds. The result does not depend on the path. Every rank makes the same
// calls in the same order. Thread rule: the communicator's. docs/design/shm_backend.md
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include "base/status.h"
#include "c10d_shm/communicator/shm_communicator.h"

namespace sherd::c10d_shm {

// A piece for each rank, and room for a piece from each rank. A rank's piece for itself is copied,
// too, unless it is in place.
struct AllToAllArguments {
  std::span<const Bytes> sources;  // Only read.
  std::span<const Bytes> targets;
  // Whether on each rank all sources are the same bytes, or empty; equal on all ranks.
  bool one_source = false;
};

// Computes out[i] = inputs[0][i] + inputs[1][i] + ..., or another operation. `out` may be one of
// the inputs.
using Fold = std::function<void(
    std::span<const std::byte* const> inputs,
    std::size_t elements,
    std::byte* out)>;

struct ReduceKernel {
  Fold fold{};
  std::size_t element_bytes = 1;  // Must divide kCacheLine.
};

struct ReduceArguments {
  // Which ranks get the result of a slice: its owner, in `target`; or all ranks or one, in place of
  // the slices.
  enum class Recipients { kOwner, kAll, kRoot };

  // What this rank contributes to the slice of each rank, including its own. Written only if
  // results take its place.
  std::span<const Bytes> slices{};
  Bytes target{};  // For kOwner: as long as its own slice.
  Recipients recipients = Recipients::kOwner;
  int root = 0;  // Used for kRoot.
  ReduceKernel kernel{};
};

// kPeerMismatch on every rank, with nothing moved, if calls differ or pieces do not match; the next
// call may follow. Any other failure is the first trouble of any rank, stays, and leaves targets
// undefined. The caller may then reuse or free its memory: no rank writes it any more, and one that
// still reads it gets an error (peer_memory.h).
Status all_to_all(
    ShmCommunicator& communicator,
    const CollectiveCall& call,
    const AllToAllArguments& arguments);
Status reduce(
    ShmCommunicator& communicator,
    const CollectiveCall& call,
    const ReduceArguments& arguments);
// Returns when every rank has called it.
Status barrier(ShmCommunicator& communicator, const CollectiveCall& call);

}  // namespace sherd::c10d_shm
