// SPDX-License-Identifier: Apache-2.0
//
// How a checkpoint keeps the state of a communication hook: one tensor of each replica becomes a
// tensor of shape [replicas, ...], of which each rank has a row. If the model is sharded, too, the
// number of the shard precedes the name: "1/error.h.0.c_fc.weight".
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>
#include <sherd/ckpt/checkpoint.h>
#include "base/check.h"
#include "ckpt/dtypes.h"

namespace sherd {
namespace {

std::string prefix_of(int shard, const Mesh& mesh) {
  return mesh.shard_size() > 1 ? std::to_string(shard) + "/" : "";
}

// The length of that prefix in a name.
std::size_t prefix_length(const std::string& name) {
  const auto digits = name.find_first_not_of("0123456789");
  return digits > 0 && digits < name.size() && name[digits] == '/' ? digits + 1
                                                                   : 0;
}

struct Outline {
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  bool operator==(const Outline&) const = default;
};
using Outlines = std::map<std::string, Outline>;

std::string outlines_as_text(const HookState& hook) {
  auto json = nlohmann::json::array();
  for (const auto& [name, tensor] : hook) {
    json.push_back(
        {name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  }
  return json.dump();
}

void add_outlines(const std::string& text, int rank, Outlines& outlines) {
  for (const auto& one : nlohmann::json::parse(text)) {
    const auto name = one[0].get<std::string>();
    const Outline outline{
        .dtype = static_cast<at::ScalarType>(one[1].get<int>()),
        .shape = one[2].get<std::vector<std::int64_t>>()};
    const auto [known, is_new] = outlines.emplace(name, outline);
    SHERD_CHECK(
        is_new || known->second == outline, "[ckpt] state of a hook: expected ",
        name, " of shape ", at::IntArrayRef(known->second.shape), " in ",
        c10::toString(known->second.dtype), " on all replicas, found ",
        at::IntArrayRef(outline.shape), " in ", c10::toString(outline.dtype),
        " on rank ", rank);
  }
}

// Zeros where this rank's hook lacks the tensor, for example because the hook was made later than on
// other replicas.
at::Tensor tensor_of(
    const HookState& hook, const std::string& name, const Outline& outline) {
  const auto found =
      std::ranges::find(hook, name, &HookState::value_type::first);
  return found == hook.end() ? at::zeros(outline.shape, outline.dtype)
                             : found->second.contiguous();
}

}  // namespace

// Every rank adds all tensors; it has no part of those of other shards.
void add_hook_state(
    CheckpointState& state, const HookState& hook, const Mesh& mesh) {
  const auto texts = mesh.world().all_gather_texts(outlines_as_text(hook));
  std::vector<Outlines> by_shard(static_cast<std::size_t>(mesh.shard_size()));
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    add_outlines(
        texts[rank], static_cast<int>(rank), by_shard[rank % by_shard.size()]);
  }
  for (int shard = 0; shard < mesh.shard_size(); ++shard) {
    const bool mine = shard == mesh.shard_index();
    for (const auto& [name, outline] :
         by_shard[static_cast<std::size_t>(shard)]) {
      const auto elements =
          mine ? tensor_of(hook, name, outline) : at::empty({0}, outline.dtype);
      auto shape = outline.shape;
      shape.insert(shape.begin(), mesh.replicate_size());
      state.add(
          kHookSection,
          {.name = prefix_of(shard, mesh) + name,
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
    const auto name_begin = prefix_length(tensor.name);
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
    const auto dtype = ckpt::dtype_named(tensor.dtype, tensor.name);
    room.emplace_back(tensor.name.substr(name_begin), at::zeros(row, dtype));
  }
  std::set<std::string> expected;
  for (int shard = 0; shard < mesh.shard_size(); ++shard) {
    expected.insert(prefix_of(shard, mesh));
  }
  return prefixes == expected ? room : HookState();
}

}  // namespace sherd
