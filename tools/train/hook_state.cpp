// SPDX-License-Identifier: Apache-2.0
#include "train/hook_state.h"

#include <utility>
#include <vector>
#include <ATen/ops/zeros.h>

namespace sherd::tools {

void add_hook_state(
    CheckpointState& state, const CommHook::State& hook, const World& world) {
  for (const auto& [name, tensor] : hook) {
    auto shape = tensor.sizes().vec();
    shape.insert(shape.begin(), world.size());
    state.add(
        kHookSection,
        {.name = name,
         .shape = std::move(shape),
         .begin = world.rank() * tensor.numel(),
         .elements = tensor.contiguous(),
         .ranks = world.size()});
  }
}

CommHook::State room_for_hook_state(
    const CheckpointContent& content, const World& world) {
  CommHook::State room;
  for (const auto& tensor : content.tensors) {
    if (tensor.section != kHookSection) {
      continue;
    }
    if (tensor.shape.empty() || tensor.shape[0] != world.size()) {
      return {};
    }
    const std::vector<std::int64_t> row(
        tensor.shape.begin() + 1, tensor.shape.end());
    const auto dtype = tensor.dtype == "I64" ? at::kLong : at::kFloat;
    room.emplace_back(
        tensor.name, at::zeros(row, at::TensorOptions().dtype(dtype)));
  }
  return room;
}

}  // namespace sherd::tools
