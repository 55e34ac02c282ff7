// SPDX-License-Identifier: Apache-2.0
//
// One rank's values for all: of parameters and buffers before training, of
// buffers while it goes on. Thread rule: one thread at a time.
#pragma once

#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/status.h"
#include "world/transport.h"

namespace sherd::ddp {

// Collective. In place; `what` is for messages. Dense tensors of the same
// shapes, dtypes and strides on every rank; small ones travel together.
[[nodiscard]] Status broadcast(
    const std::vector<at::Tensor>& tensors,
    world::Transport& via,
    int root,
    const std::string& what);

}  // namespace sherd::ddp
