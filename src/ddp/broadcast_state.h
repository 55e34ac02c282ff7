// SPDX-License-Identifier: Apache-2.0
//
// Broadcasts one rank's parameters and buffers before training, and its buffers after a backward.
// Thread rule: one thread at a time.
#pragma once

#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/status.h"
#include "world/transport.h"

namespace sherd::ddp {

// Collective. Replaces values in place; small tensors are sent together. REQUIRES: dense tensors of
// the same shapes, dtypes and strides on every rank. `what` is for error messages.
[[nodiscard]] Status broadcast(
    const std::vector<at::Tensor>& tensors,
    world::Transport& via,
    int root,
    const std::string& what);

}  // namespace sherd::ddp
