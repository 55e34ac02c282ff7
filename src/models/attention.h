// SPDX-License-Identifier: Apache-2.0
//
// Causal attention of several heads, for training and for decoding with a cache. Pure functions;
// any thread.
#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>
#include <sherd/models/language_model.h>

namespace sherd::models {

// B rows; T queries, which are the last of S positions; H heads, each K-th part of which shares
// keys and values; D numbers a head.
struct AttentionInputs {
  at::Tensor queries;  // [B, H, T, D]
  at::Tensor keys;     // [B, K, S, D]
  at::Tensor values;
};

struct AttentionOptions {
  double dropout = 0.0;
  std::int64_t window =
      0;  // How many positions a query sees, with its own; 0: all.
};

// Each query sees its own position and those before it. Returns [B, H, T, D]. Keys and values of
// shared heads are not copied.
at::Tensor attend(
    const AttentionInputs& inputs, const AttentionOptions& options = {});

// The inputs of these queries, keys and values, with what `cache` has before them, and adds them
// to it; null: as they are.
AttentionInputs with_cache(AttentionInputs inputs, LayerKeyValues* cache);

}  // namespace sherd::models
