// SPDX-License-Identifier: Apache-2.0
//
// Collectives, and a training step of a sharded GPT, captured in CUDA graphs and replayed: the part of
// cuda_check that needs CUDA's own names.
#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace sherd::cuda_check {

// Whether a gather in a stream of its own and a sum, captured together, are made again when they are
// replayed. `nccl` has one rank.
bool replays_collectives(
    const c10::intrusive_ptr<c10d::Backend>& nccl, const c10::Device& device);

// Whether replayed steps have the losses of eager ones. Says how long each takes.
bool replays_a_step(const c10::Device& device);

}  // namespace sherd::cuda_check
