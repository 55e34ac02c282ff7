// SPDX-License-Identifier: Apache-2.0
//
// A training step of a sharded GPT, captured in a CUDA graph and replayed, beside eager steps: the part
// of cuda_check that needs CUDA's own names.
#pragma once

#include <c10/core/Device.h>

namespace sherd::cuda_check {

// Whether replayed steps have the losses of eager ones. Says how long each takes.
bool replays_a_step(const c10::Device& device);

}  // namespace sherd::cuda_check
