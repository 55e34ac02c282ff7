// SPDX-License-Identifier: Apache-2.0
//
// How a checkpoint keeps the state of a communication hook: one tensor of each replica becomes a
// tensor of shape [replicas, ...], of which each rank has a row. If the model is sharded, too, the
// number of the shard precedes the name: "1/error.h.0.c_fc.weight".
#include <set>
#include <string>
#include <utility>
#include <vector>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>
#include <sherd/ckpt/checkpoint.h>

namespace sherd {
namespace {

std::string prefix_of(int shard, const Mesh& mesh) {
  return mesh.shard_size() > 1 ? std::to_string(shard) + "/" : "";
}

// Names, dtypes and shapes, as text.
std::string outline_of(const HookState& hook) {
  auto json = nlohmann::json::array();
  for (const auto& [name, tensor] : hook) {
    json.push_back(
        {name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  }
  return json.dump();
}

}  // namespace

// Every rank adds all tensors; it has no part of those of other shards.
void add_hook_state(
    CheckpointState& state, const HookState& hook, const Mesh& mesh) {
  const auto outlines = mesh.world().all_gather_texts(outline_of(hook));
  for (int shard = 0; shard < mesh.shard_size(); ++shard) {
    const bool mine = shard == mesh.shard_index();
    auto tensor = hook.begin();
    for (const auto& outline :
         nlohmann::json::parse(outlines[static_cast<std::size_t>(shard)])) {
      const auto dtype = static_cast<at::ScalarType>(outline[1].get<int>());
      auto shape = outline[2].get<std::vector<std::int64_t>>();
      const auto elements =
          mine ? (tensor++)->second.contiguous() : at::empty({0}, dtype);
      shape.insert(shape.begin(), mesh.replicate_size());
      state.add(
          kHookSection,
          {.name = prefix_of(shard, mesh) + outline[0].get<std::string>(),
           .shape = shape,
           .begin = mine ? mesh.replicate_index() * elements.numel() : 0,
           .elements = elements,
           .ranks = mesh.world().size()});
    }
  }
}

HookState room_for_hook_state(
    const CheckpointContent& content, const Mesh& mesh) {
  HookState room;
  std::set<std::string> prefixes;
  for (const auto& tensor : content.tensors) {
    if (tensor.section != kHookSection) {
      continue;
    }
    const auto name_begin = tensor.name.find('/') + 1;  // 0: no prefix.
    const auto prefix = tensor.name.substr(0, name_begin);
    prefixes.insert(prefix);
    if (tensor.shape.empty() || tensor.shape[0] != mesh.replicate_size()) {
      return {};
    }
    if (prefix != prefix_of(mesh.shard_index(), mesh)) {
      continue;
    }
    const std::vector<std::int64_t> row(
        tensor.shape.begin() + 1, tensor.shape.end());
    const auto dtype = tensor.dtype == "I64" ? at::kLong : at::kFloat;
    room.emplace_back(tensor.name.substr(name_begin), at::zeros(row, dtype));
  }
  std::set<std::string> expected;
  for (int shard = 0; shard < mesh.shard_size(); ++shard) {
    expected.insert(prefix_of(shard, mesh));
  }
  return prefixes == expected ? room : HookState();
}

}  // namespace sherd
