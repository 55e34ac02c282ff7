// SPDX-License-Identifier: Apache-2.0
//
// Causal multi-head attention, for training and for decoding with a cache. Thread rule: pure
// functions, any thread.
#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>
#include <sherd/models/language_model.h>

namespace sherd::models {

// B rows; T queries, which are the last of S positions; H heads of queries, groups of H / K of
// which share keys and values; D numbers per head.
struct AttentionInputs {
  at::Tensor queries;  // [B, H, T, D]
  at::Tensor keys;     // [B, K, S, D]
  at::Tensor values;
};

struct AttentionOptions {
  double dropout = 0.0;
  // How many positions a query attends to, including its own. 0: all before it.
  std::int64_t window = 0;
};

// Each query attends to its own position and those before it. Returns [B, H, T, D]. Shared keys and
// values are not copied.
at::Tensor attend(
    const AttentionInputs& inputs, const AttentionOptions& options = {});

// Returns the inputs with the keys and values in `cache` put before their own, and adds their own
// to the cache. Null: returns them unchanged.
AttentionInputs with_cache(AttentionInputs inputs, LayerKeyValues* cache);

}  // namespace sherd::models
