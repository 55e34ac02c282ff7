// SPDX-License-Identifier: Apache-2.0
//
// What a C++ block of the guide may use without declaring it.
#pragma once

#include <optional>
#include <sherd/sherd.h>
#include <torch/torch.h>

using sherd::models::BlockImpl;

// A model, sharded, and what a training loop has. Parameters of each function
// that tests/docs/extract_cpp.py makes of a block.
#define GIVEN                                                   \
  sherd::World world, sherd::models::Gpt model,                 \
      sherd::FullyShardedDataParallel fsdp, sherd::AdamW adamw, \
      sherd::data::GlobalBatches batches,                       \
      void (*my_kernel)(const float*, std::int64_t)
