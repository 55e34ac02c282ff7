// SPDX-License-Identifier: Apache-2.0
#include "models/attention.h"

#include <optional>
#include <utility>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include "models/config_checks.h"

namespace sherd::models {
namespace {

// Whether query t, which is at position S - T + t, attends to position s: [T, S].
at::Tensor visible(
    const AttentionInputs& inputs, const AttentionOptions& options) {
  const auto queries = inputs.queries.size(2);
  const auto keys = inputs.keys.size(2);
  const auto ids = at::TensorOptions(at::kLong).device(inputs.keys.device());
  const auto distance = at::arange(keys - queries, keys, ids).unsqueeze(1) -
      at::arange(keys, ids);
  const auto seen = distance >= 0;
  return options.window > 0 ? seen.logical_and(distance < options.window)
                            : seen;
}

at::Tensor room_for(const at::Tensor& fresh, std::int64_t positions) {
  return at::empty(
      {fresh.size(0), fresh.size(1), positions, fresh.size(3)},
      fresh.options());
}

at::Tensor last(const at::Tensor& x_BKSD, std::int64_t positions) {
  return x_BKSD.narrow(2, x_BKSD.size(2) - positions, positions);
}

}  // namespace

at::Tensor attend(
    const AttentionInputs& inputs, const AttentionOptions& options) {
  const auto queries = inputs.queries.size(2);
  const auto keys = inputs.keys.size(2);
  const bool all = options.window == 0 || keys <= options.window;
  const bool causal = all && queries == keys;
  // A single query attends to everything that it is given.
  const auto seen = queries == 1 && !all ? options.window : keys;
  const auto mask = causal || queries == 1
      ? std::nullopt
      : std::optional(visible(inputs, options));
  return at::scaled_dot_product_attention(
      inputs.queries, last(inputs.keys, seen), last(inputs.values, seen), mask,
      options.dropout, causal, /*scale=*/std::nullopt,
      /*enable_gqa=*/inputs.queries.size(1) != inputs.keys.size(1));
}

AttentionInputs with_cache(AttentionInputs inputs, LayerKeyValues* cache) {
  if (cache != nullptr) {
    auto [keys, values] = cache->append(inputs.keys, inputs.values);
    inputs.keys = std::move(keys);
    inputs.values = std::move(values);
  }
  return inputs;
}

LayerKeyValues::KeysValues LayerKeyValues::append(
    const at::Tensor& keys, const at::Tensor& values) {
  const auto fresh = keys.size(2);
  expect(
      positions_ + fresh <= positions_max_,
      "no more positions than the cache has room for", "positions",
      positions_ + fresh);
  if (positions_ == 0) {
    memory_ = {
        .keys = room_for(keys, positions_max_),
        .values = room_for(values, positions_max_)};
  }
  memory_.keys.narrow(2, positions_, fresh).copy_(keys);
  memory_.values.narrow(2, positions_, fresh).copy_(values);
  positions_ += fresh;
  return {
      .keys = memory_.keys.narrow(2, 0, positions_),
      .values = memory_.values.narrow(2, 0, positions_)};
}

}  // namespace sherd::models
