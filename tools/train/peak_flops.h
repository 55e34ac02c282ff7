// SPDX-License-Identifier: Apache-2.0
//
// The most that the processors of a job can compute, to compare with what training computes. Thread
// rule: one thread.
#pragma once

#include <sherd/world/world.h>
#include "train/config.h"

namespace sherd::tools {

// Collective. Floating-point operations per second of all ranks together: --peak-flops of each
// rank, or else what each reaches on `device` in products of matrices of 512 x 512 (on a GPU 8192 x
// 8192) in --dtype, at the same time as the others, within a twentieth of a second.
double peak_flops(
    const World& world, const TrainConfig& config, at::Device device);

}  // namespace sherd::tools
