// SPDX-License-Identifier: Apache-2.0
//
// The collectives of World.
#include <sherd/world/world.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>
#include <ATen/ops/empty.h>
#include "base/check.h"
#include "base/hash.h"
#include "base/status.h"
#include "compat/parameter_key.h"
#include "world/collectives.h"
#include "world/world_impl.h"

namespace sherd {
namespace {

// What a rank calls on a World. Ranks compare their calls before any of them sends more, because
// Gloo ends the process of a receiver that gets more bytes than it has room for. Sent as it is, so it
// has no padding.
struct WorldCall {
  enum class Kind : std::int64_t {
    kBarrier,
    kAllGather,
    kAllGatherTexts,
    kBroadcast
  };
  Kind kind = Kind::kBarrier;
  // The number of numbers or tensors. For a text: its bytes, which may differ between ranks.
  std::int64_t count = 0;
  std::int64_t bytes = 0;     // Those of all tensors.
  std::uint64_t content = 0;  // A digest of their dtypes and sizes.
  // What is to be gathered, if it fits.
  std::array<std::byte, 96> values = {};
};
static_assert(std::is_trivially_copyable_v<WorldCall>);

// "World::all_gather".
const char* name_of(WorldCall::Kind kind) {
  switch (kind) {
    case WorldCall::Kind::kBarrier:
      return "World::barrier";
    case WorldCall::Kind::kAllGather:
      return "World::all_gather";
    case WorldCall::Kind::kAllGatherTexts:
      return "World::all_gather_texts";
    case WorldCall::Kind::kBroadcast:
      return "World::broadcast";
  }
  return "";
}

bool match(const WorldCall& one, const WorldCall& other) {
  return one.kind == other.kind && one.bytes == other.bytes &&
      one.content == other.content &&
      (one.count == other.count ||
       one.kind == WorldCall::Kind::kAllGatherTexts);
}

std::string described(const WorldCall& call) {
  switch (call.kind) {
    case WorldCall::Kind::kAllGather:
      return str(name_of(call.kind), " of ", call.count, " numbers");
    case WorldCall::Kind::kBroadcast:
      return str(
          name_of(call.kind), " of ", call.count, " tensors of ", call.bytes,
          " bytes");
    default:
      return name_of(call.kind);
  }
}

// Collective: every rank's call, by rank. Throws on every rank if they do not match, naming the first
// one that differs from rank 0's.
std::vector<WorldCall> gather_calls(
    world::Transport& transport, const WorldCall& mine) {
  const auto row =
      at::empty({static_cast<std::int64_t>(sizeof(mine))}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), &mine, sizeof(mine));
  const auto rows =
      world::Collectives(transport, name_of(mine.kind)).all_gather(row);
  rows.status().throw_if_failed();
  std::vector<WorldCall> calls(rows.value().size());
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    std::memcpy(
        &calls[rank], rows.value()[rank].const_data_ptr(), sizeof(WorldCall));
    if (!match(calls[0], calls[rank])) {
      const auto first = described(calls[0]);
      const auto other = described(calls[rank]);
      throw Error(
          str("[world] ranks went different ways: rank 0 calls ", first,
              ", rank ", rank, " calls ", other,
              first == other ? " of other dtypes or sizes" : ""),
          ErrorCode::kPeerMismatch);
    }
  }
  return calls;
}

// Every rank's bytes, by rank; few bytes come with the calls.
std::vector<std::string> gather(
    world::Transport& transport, WorldCall call, std::string_view mine) {
  const auto fit = static_cast<std::int64_t>(call.values.size());
  mine.copy(reinterpret_cast<char*>(call.values.data()), call.values.size());
  const auto calls = gather_calls(transport, call);
  std::vector<std::int64_t> lengths;
  for (const auto& one : calls) {
    // Numbers are equally many on all ranks.
    lengths.push_back(
        one.kind == WorldCall::Kind::kAllGatherTexts
            ? one.count
            : static_cast<std::int64_t>(mine.size()));
  }
  if (*std::ranges::max_element(lengths) > fit) {
    auto all = world::Collectives(transport, name_of(call.kind))
                   .all_gather_texts(std::string(mine), lengths);
    all.status().throw_if_failed();
    return std::move(all).value();
  }
  std::vector<std::string> all;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    all.emplace_back(
        reinterpret_cast<const char*>(calls[rank].values.data()),
        static_cast<std::size_t>(lengths[rank]));
  }
  return all;
}

}  // namespace

void World::barrier() const {
  if (size() > 1) {
    gather_calls(impl_->all_ranks(), {.kind = WorldCall::Kind::kBarrier});
  }
}

std::vector<std::vector<double>> World::all_gather(
    const std::vector<double>& mine) const {
  if (size() == 1) {
    return {mine};
  }
  const std::string_view bytes(
      reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double));
  const WorldCall call{
      .kind = WorldCall::Kind::kAllGather,
      .count = static_cast<std::int64_t>(mine.size())};
  std::vector<std::vector<double>> all;
  for (const auto& one : gather(impl_->all_ranks(), call, bytes)) {
    auto& numbers = all.emplace_back(mine.size());
    one.copy(reinterpret_cast<char*>(numbers.data()), one.size());
  }
  return all;
}

std::vector<std::string> World::all_gather_texts(
    const std::string& mine) const {
  if (size() == 1) {
    return {mine};
  }
  const WorldCall call{
      .kind = WorldCall::Kind::kAllGatherTexts,
      .count = static_cast<std::int64_t>(mine.size())};
  return gather(impl_->all_ranks(), call, mine);
}

void World::broadcast(const std::vector<at::Tensor>& tensors) const {
  WorldCall call{
      .kind = WorldCall::Kind::kBroadcast,
      .count = static_cast<std::int64_t>(tensors.size())};
  Hash64 types_and_sizes;
  std::vector<at::Tensor> on_host;
  for (const auto& tensor : tensors) {
    SHERD_CHECK(
        tensor.is_contiguous() && !tensor.is_meta(),
        "[world] expected contiguous tensors with values to broadcast, found ",
        tensor.is_meta() ? "one of the meta device" : "one", " of shape ",
        tensor.sizes(), " with strides ", tensor.strides());
    compat::check_writable(tensor);
    on_host.push_back(tensor.cpu());  // The tensor itself if it is there.
    call.bytes += static_cast<std::int64_t>(tensor.nbytes());
    types_and_sizes.add(static_cast<std::uint64_t>(tensor.scalar_type()))
        .add(static_cast<std::uint64_t>(tensor.nbytes()));
  }
  if (size() == 1) {
    return;
  }
  call.content = types_and_sizes.value();
  auto& transport = impl_->all_ranks();
  gather_calls(transport, call);
  world::Collectives(transport, name_of(call.kind))
      .broadcast(on_host, 0)
      .throw_if_failed();
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].is_cpu() && rank() != 0) {
      tensors[i].copy_(on_host[i]);
    }
  }
}

}  // namespace sherd
