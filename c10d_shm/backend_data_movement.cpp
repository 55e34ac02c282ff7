// SPDX-License-Identifier: Apache-2.0
//
// all-gather, broadcast, gather, scatter and all-to-all.
#include <numeric>
#include <utility>
#include "base/check.h"
#include "c10d_shm/collective_operation.h"

namespace sherd::c10d_shm {
namespace {

using c10d::OpType;

// An all_to_all() of the bytes of tensors.
struct AllToAllPieces {
  std::string text;
  // A piece for each rank, and one from each rank.
  std::vector<Bytes> to{};
  std::vector<Bytes> from{};
  bool one_source = false;
  // The owners of the memory of `to` and `from`.
  std::vector<TensorBytes> inputs{};
  std::vector<TensorBytes> outputs{};
};

CollectivePart part_of(AllToAllPieces pieces) {
  CollectivePart part;
  part.outputs = pieces.outputs;
  part.run = [pieces = std::move(pieces)](
                 ShmCommunicator& communicator, Duration deadline) {
    return all_to_all(
        communicator, {.what = pieces.text, .deadline = deadline},
        {.sources = pieces.to,
         .targets = pieces.from,
         .one_source = pieces.one_source});
  };
  return part;
}

std::vector<Bytes> nothing(int ranks) {
  return std::vector<Bytes>(static_cast<std::size_t>(ranks));
}

constexpr const char* kAllGather = "all_gather";
constexpr const char* kAllGatherCoalesced = "all_gather_coalesced";
constexpr const char* kAllToAll = "all_to_all";

void expect_room(const at::Tensor& output, const at::Tensor& input, int ranks) {
  expect_same_type(output, input.scalar_type(), kAllGather);
  SHERD_CHECK(
      output.numel() == input.numel() * ranks, "[c10d_shm] ", kAllGather,
      ": expected room for ", input.numel() * ranks, " elements, ",
      input.numel(), " of each rank, found ", output.numel());
}

void expect_places(
    const Tensors& places,
    const at::Tensor& input,
    int rank,
    const char* name) {
  for (const auto& place : places) {
    expect_same_type(place, input.scalar_type(), name);
  }
  expect_elements(places[static_cast<std::size_t>(rank)], input.numel(), name);
}

// A part for each of the inputs, which goes to all ranks; outputs[i] is either one tensor that
// holds a piece of each rank, or one tensor for each rank.
std::vector<CollectivePart> all_gather_parts(
    const std::vector<Tensors>& outputs,
    const Tensors& inputs,
    const char* name,
    int rank,
    int ranks) {
  CallMemory memory;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    memory.writes(outputs[i]);
    memory.reads_unless_at(inputs[i], extent_of_piece(outputs[i], rank, ranks));
  }
  const WriteTiming writes = memory.write_timing();
  std::vector<CollectivePart> parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    AllToAllPieces pieces{
        .text = call_text(
            name, inputs[i].scalar_type(), part_text(i, inputs.size())),
        .one_source = true};
    pieces.inputs = inputs_of({inputs[i]});
    pieces.outputs = outputs_of(outputs[i], writes);
    pieces.to.assign(static_cast<std::size_t>(ranks), pieces.inputs[0].bytes());
    pieces.from = pieces_of(pieces.outputs, ranks);
    parts.push_back(part_of(std::move(pieces)));
  }
  return parts;
}

// Pieces along the first dimension: of equal size, or as `sizes` say.
std::vector<Bytes> split_pieces(
    const at::Tensor& tensor,
    Bytes bytes,
    const std::vector<std::int64_t>& sizes,
    int ranks) {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (sizes.empty()) {
    SHERD_CHECK(
        rows % ranks == 0, "[c10d_shm] ", kAllToAll,
        ": expected a first dimension that ", ranks, " ranks divide, found ",
        rows);
    return cut(bytes, ranks);
  }
  SHERD_CHECK(
      sizes.size() == static_cast<std::size_t>(ranks) &&
          std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == rows,
      "[c10d_shm] ", kAllToAll, ": expected ", ranks,
      " split sizes that add up to ", rows);
  const std::size_t row_bytes =
      rows == 0 ? 0 : bytes.size() / static_cast<std::size_t>(rows);
  std::vector<Bytes> pieces;
  std::size_t begin = 0;
  for (const auto size : sizes) {
    SHERD_CHECK(
        size >= 0, "[c10d_shm] ", kAllToAll, ": expected split sizes, found ",
        size);
    pieces.push_back(
        bytes.subspan(begin, static_cast<std::size_t>(size) * row_bytes));
    begin += pieces.back().size();
  }
  return pieces;
}

}  // namespace

C10dWork ShmBackend::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const auto& tensor = single_element(tensors, "broadcast");
  const int root = checked_root(opts.rootRank, size_, "broadcast");
  AllToAllPieces pieces{
      .text = call_text("broadcast", tensor.scalar_type(), str("root ", root)),
      .to = nothing(size_),
      .from = nothing(size_),
      .one_source = true};
  auto& own = pieces.from[static_cast<std::size_t>(root)];
  if (root == rank_) {
    pieces.inputs = inputs_of(tensors);
    own = pieces.inputs[0].bytes();
    pieces.to.assign(pieces.to.size(), own);
  } else {
    pieces.outputs = outputs_of(tensors);
    own = pieces.outputs[0].bytes();
  }
  return issue(
      {OpType::BROADCAST, "shm:broadcast", tensors, tensors,
       only(part_of(std::move(pieces)))},
      opts);
}

C10dWork ShmBackend::allgather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  const auto& places = single_element(outputs, kAllGather);
  const auto& input = single_element(inputs, kAllGather);
  expect_count(places.size(), size_, kAllGather);
  expect_places(places, input, rank_, kAllGather);
  return issue(
      {OpType::ALLGATHER, "shm:all_gather", inputs, places,
       all_gather_parts({places}, inputs, kAllGather, rank_, size_)},
      opts);
}

C10dWork ShmBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  expect_room(output, input, size_);
  return issue(
      {OpType::_ALLGATHER_BASE,
       "shm:all_gather_into_tensor",
       {input},
       {output},
       all_gather_parts({{output}}, {input}, kAllGather, rank_, size_)},
      opts);
}

// outputs[rank][i] receives inputs[i].
C10dWork ShmBackend::allgather_coalesced(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  expect_count(outputs.size(), size_, kAllGatherCoalesced);
  Tensors results;
  std::vector<Tensors> places(inputs.size());
  for (const auto& list : outputs) {
    expect_count(list.size(), inputs.size(), kAllGatherCoalesced);
    results.insert(results.end(), list.begin(), list.end());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      places[i].push_back(list[i]);
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expect_places(places[i], inputs[i], rank_, kAllGatherCoalesced);
  }
  return issue(
      {OpType::ALLGATHER_COALESCED, "shm:all_gather_coalesced", inputs,
       std::move(results),
       all_gather_parts(places, inputs, kAllGatherCoalesced, rank_, size_)},
      opts);
}

C10dWork ShmBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  expect_count(outputs.size(), inputs.size(), kAllGatherCoalesced);
  std::vector<Tensors> places;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expect_room(outputs[i], inputs[i], size_);
    places.push_back({outputs[i]});
  }
  return issue(
      {OpType::ALLGATHER_COALESCED, "shm:all_gather_into_tensor_coalesced",
       inputs, outputs,
       all_gather_parts(places, inputs, kAllGather, rank_, size_)},
      opts);
}

C10dWork ShmBackend::gather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& opts) {
  constexpr const char* kName = "gather";
  const auto& input = single_element(inputs, kName);
  const int root = checked_root(opts.rootRank, size_, kName);
  AllToAllPieces pieces{
      .text = call_text(kName, input.scalar_type(), str("root ", root)),
      .to = nothing(size_),
      .from = nothing(size_),
      .inputs = inputs_of(inputs)};
  pieces.to[static_cast<std::size_t>(root)] = pieces.inputs[0].bytes();
  Tensors places;
  if (root == rank_) {
    places = single_element(outputs, kName);
    expect_count(places.size(), size_, kName);
    expect_places(places, input, rank_, kName);
    CallMemory memory;
    memory.writes(places);
    memory.reads_unless_at(input, extent_of_piece(places, rank_, size_));
    pieces.outputs = outputs_of(places, memory.write_timing());
    pieces.from = bytes_of(pieces.outputs);
  }
  return issue(
      {OpType::GATHER, "shm:gather", inputs, std::move(places),
       only(part_of(std::move(pieces)))},
      opts);
}

C10dWork ShmBackend::scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ScatterOptions& opts) {
  constexpr const char* kName = "scatter";
  const auto& output = single_element(outputs, kName);
  const int root = checked_root(opts.rootRank, size_, kName);
  AllToAllPieces pieces{
      .text = call_text(kName, output.scalar_type(), str("root ", root)),
      .to = nothing(size_),
      .from = nothing(size_)};
  Tensors sources;
  if (root == rank_) {
    sources = single_element(inputs, kName);
    expect_count(sources.size(), size_, kName);
    expect_places(sources, output, rank_, kName);
    pieces.inputs = inputs_of(sources);
    pieces.to = bytes_of(pieces.inputs);
  }
  CallMemory memory;
  memory.writes(output);
  memory.reads_pieces(sources, rank_, extent_of(output));
  pieces.outputs = outputs_of(outputs, memory.write_timing());
  pieces.from[static_cast<std::size_t>(root)] = pieces.outputs[0].bytes();
  return issue(
      {OpType::SCATTER, "shm:scatter", std::move(sources), outputs,
       only(part_of(std::move(pieces)))},
      opts);
}

C10dWork ShmBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<std::int64_t>& output_split_sizes,
    std::vector<std::int64_t>& input_split_sizes,
    const c10d::AllToAllOptions& opts) {
  expect_same_type(output, input.scalar_type(), kAllToAll);
  CallMemory memory;
  memory.writes(output);
  memory.reads(input);
  AllToAllPieces pieces{
      .text = call_text(kAllToAll, input.scalar_type()),
      .inputs = inputs_of({input}),
      .outputs = outputs_of({output}, memory.write_timing())};
  pieces.to =
      split_pieces(input, pieces.inputs[0].bytes(), input_split_sizes, size_);
  pieces.from = split_pieces(
      output, pieces.outputs[0].bytes(), output_split_sizes, size_);
  const auto own = static_cast<std::size_t>(rank_);
  SHERD_CHECK(
      pieces.from[own].size() == pieces.to[own].size(), "[c10d_shm] ",
      kAllToAll, ": expected ", pieces.to[own].size(),
      " bytes in the piece of this rank for itself, found room for ",
      pieces.from[own].size());
  return issue(
      {OpType::ALLTOALL_BASE,
       "shm:all_to_all_single",
       {input},
       {output},
       only(part_of(std::move(pieces)))},
      opts);
}

C10dWork ShmBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  expect_count(outputs.size(), size_, kAllToAll);
  expect_count(inputs.size(), size_, kAllToAll);
  const auto dtype = inputs[0].scalar_type();
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    expect_same_type(inputs[r], dtype, kAllToAll);
    expect_same_type(outputs[r], dtype, kAllToAll);
  }
  const auto own = static_cast<std::size_t>(rank_);
  expect_elements(outputs[own], inputs[own].numel(), kAllToAll);
  CallMemory memory;
  memory.writes(outputs);
  memory.reads_pieces(inputs, rank_, extent_of(outputs[own]));
  AllToAllPieces pieces{
      .text = call_text(kAllToAll, dtype),
      .inputs = inputs_of(inputs),
      .outputs = outputs_of(outputs, memory.write_timing())};
  pieces.to = bytes_of(pieces.inputs);
  pieces.from = bytes_of(pieces.outputs);
  return issue(
      {OpType::ALLTOALL, "shm:all_to_all", inputs, outputs,
       only(part_of(std::move(pieces)))},
      opts);
}

}  // namespace sherd::c10d_shm
