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

// Tensors whose bytes move.
struct AllToAllOperation {
  std::string text;
  // A piece for each rank, and of each rank.
  std::vector<Bytes> to{};
  std::vector<Bytes> from{};
  bool one_source = false;
  // What owns the memory of `to` and `from`.
  std::vector<TensorBytes> inputs{};
  std::vector<TensorBytes> outputs{};

  Status run(ShmCommunicator& communicator, Duration deadline) const {
    return all_to_all(
        communicator, {.what = text, .deadline = deadline},
        {.sources = to, .targets = from, .one_source = one_source});
  }
  void copy_back() const {
    for (const auto& output : outputs) {
      output.copy_back();
    }
  }
};

auto run_one(AllToAllOperation part) {
  std::vector<AllToAllOperation> parts;
  parts.push_back(std::move(part));
  return run_all(std::move(parts));
}

std::vector<Bytes> nothing(int ranks) {
  return std::vector<Bytes>(static_cast<std::size_t>(ranks));
}

constexpr const char* kAllGather = "all_gather";

void expect_room(const at::Tensor& output, const at::Tensor& input, int ranks) {
  expect_same_type(output, input.scalar_type(), kAllGather);
  SHERD_CHECK(
      output.numel() == input.numel() * ranks, "[world] ", kAllGather,
      ": expected room for ", input.numel() * ranks, " elements, ",
      input.numel(), " of each rank, found ", output.numel());
}

// One output that holds a piece of each rank.
AllToAllOperation all_gather_operation(
    const at::Tensor& output,
    const at::Tensor& input,
    int ranks,
    WriteTiming writes) {
  AllToAllOperation part{
      .text = call_text(kAllGather, input.scalar_type()), .one_source = true};
  part.inputs = inputs_of({input});
  part.outputs = outputs_of({output}, writes);
  part.to.assign(static_cast<std::size_t>(ranks), part.inputs[0].bytes());
  part.from = cut(part.outputs[0].bytes(), ranks);
  return part;
}

// Several at once, each of an input.
std::vector<AllToAllOperation> all_gather_operation(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& inputs,
    int rank,
    int ranks) {
  CallMemory memory;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expect_room(outputs[i], inputs[i], ranks);
    memory.writes(outputs[i]);
    memory.reads_unless_at(
        inputs[i],
        cut(extent_of(outputs[i]), ranks)[static_cast<std::size_t>(rank)]);
  }
  const WriteTiming writes = memory.write_timing();
  std::vector<AllToAllOperation> parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    parts.push_back(all_gather_operation(outputs[i], inputs[i], ranks, writes));
  }
  return parts;
}

// An output for each rank.
AllToAllOperation all_gather_operation(
    const std::vector<at::Tensor>& outputs,
    const at::Tensor& input,
    const char* name,
    WriteTiming writes) {
  for (const auto& output : outputs) {
    expect_same_type(output, input.scalar_type(), name);
  }
  AllToAllOperation part{
      .text = call_text(name, input.scalar_type()), .one_source = true};
  part.inputs = inputs_of({input});
  part.outputs = outputs_of(outputs, writes);
  part.to.assign(outputs.size(), part.inputs[0].bytes());
  part.from = bytes_of(part.outputs);
  return part;
}

// A piece for each rank; that of this one may lie where it is to come.
WriteTiming write_timing_of_lists(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& inputs,
    const at::Tensor& own_output,
    std::size_t own_input) {
  CallMemory memory;
  memory.writes(outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (i == own_input) {
      memory.reads_unless_at(inputs[i], extent_of(own_output));
    } else {
      memory.reads(inputs[i]);
    }
  }
  return memory.write_timing();
}

// Pieces along the first dimension: equal ones, or as `sizes` say.
std::vector<Bytes> pieces_of(
    const at::Tensor& tensor,
    Bytes bytes,
    const std::vector<std::int64_t>& sizes,
    int ranks) {
  constexpr const char* kName = "all_to_all";
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (sizes.empty()) {
    SHERD_CHECK(
        rows % ranks == 0, "[world] ", kName,
        ": expected a first dimension that ", ranks, " ranks divide, found ",
        rows);
    return cut(bytes, ranks);
  }
  SHERD_CHECK(
      sizes.size() == static_cast<std::size_t>(ranks) &&
          std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == rows,
      "[world] ", kName, ": expected ", ranks, " split sizes that add up to ",
      rows);
  const std::size_t row_bytes =
      rows == 0 ? 0 : bytes.size() / static_cast<std::size_t>(rows);
  std::vector<Bytes> pieces;
  std::size_t begin = 0;
  for (const auto size : sizes) {
    SHERD_CHECK(
        size >= 0, "[world] ", kName, ": expected split sizes, found ", size);
    pieces.push_back(
        bytes.subspan(begin, static_cast<std::size_t>(size) * row_bytes));
    begin += pieces.back().size();
  }
  return pieces;
}

}  // namespace

c10::intrusive_ptr<c10d::Work> ShmBackend::broadcast(
    std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& opts) {
  const auto& tensor = single_element(tensors, "broadcast");
  const int root = checked_root(opts.rootRank, size_, "broadcast");
  AllToAllOperation part{
      .text = call_text("broadcast", tensor.scalar_type(), str("root ", root)),
      .one_source = true};
  part.to = nothing(size_);
  part.from = nothing(size_);
  if (root == rank_) {
    part.inputs = inputs_of(tensors);
    part.to.assign(part.to.size(), part.inputs[0].bytes());
    part.from[static_cast<std::size_t>(root)] = part.inputs[0].bytes();
  } else {
    part.outputs = outputs_of(tensors);
    part.from[static_cast<std::size_t>(root)] = part.outputs[0].bytes();
  }
  return issue(
      {.type = OpType::BROADCAST,
       .title = "shm:broadcast",
       .inputs = tensors,
       .outputs = tensors,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_one(std::move(part))});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::allgather(
    std::vector<std::vector<at::Tensor>>& outputs,
    std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& opts) {
  constexpr const char* kName = "all_gather";
  auto& places = single_element(outputs, kName);
  const auto& input = single_element(inputs, kName);
  expect_count(places.size(), size_, kName);
  const auto& own = places[static_cast<std::size_t>(rank_)];
  expect_elements(own, input.numel(), kName);
  const WriteTiming writes = write_timing_of_lists(places, inputs, own, 0);
  return issue(
      {.type = OpType::ALLGATHER,
       .title = "shm:all_gather",
       .inputs = inputs,
       .outputs = places,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_one(all_gather_operation(places, input, kName, writes))});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  return issue(
      {.type = OpType::_ALLGATHER_BASE,
       .title = "shm:all_gather_into_tensor",
       .inputs = {input},
       .outputs = {output},
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(all_gather_operation({output}, {input}, rank_, size_))});
}

// outputs[rank][i] of inputs[i].
c10::intrusive_ptr<c10d::Work> ShmBackend::allgather_coalesced(
    std::vector<std::vector<at::Tensor>>& outputs,
    std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& opts) {
  constexpr const char* kName = "all_gather_coalesced";
  expect_count(outputs.size(), size_, kName);
  CallMemory memory;
  std::vector<at::Tensor> results;
  for (const auto& list : outputs) {
    expect_count(list.size(), inputs.size(), kName);
    results.insert(results.end(), list.begin(), list.end());
    memory.writes(list);
  }
  const auto& own = outputs[static_cast<std::size_t>(rank_)];
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expect_elements(own[i], inputs[i].numel(), kName);
    memory.reads_unless_at(inputs[i], extent_of(own[i]));
  }
  const WriteTiming writes = memory.write_timing();
  std::vector<AllToAllOperation> parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::vector<at::Tensor> places;
    for (const auto& list : outputs) {
      places.push_back(list[i]);
    }
    parts.push_back(all_gather_operation(places, inputs[i], kName, writes));
  }
  return issue(
      {.type = OpType::ALLGATHER_COALESCED,
       .title = "shm:all_gather_coalesced",
       .inputs = inputs,
       .outputs = std::move(results),
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(std::move(parts))});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::allgather_into_tensor_coalesced(
    std::vector<at::Tensor>& outputs,
    std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& opts) {
  expect_count(outputs.size(), inputs.size(), "all_gather_coalesced");
  return issue(
      {.type = OpType::ALLGATHER_COALESCED,
       .title = "shm:all_gather_into_tensor_coalesced",
       .inputs = inputs,
       .outputs = outputs,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(all_gather_operation(outputs, inputs, rank_, size_))});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::gather(
    std::vector<std::vector<at::Tensor>>& outputs,
    std::vector<at::Tensor>& inputs,
    const c10d::GatherOptions& opts) {
  constexpr const char* kName = "gather";
  const auto& input = single_element(inputs, kName);
  const int root = checked_root(opts.rootRank, size_, kName);
  AllToAllOperation part{
      .text = call_text(kName, input.scalar_type(), str("root ", root))};
  part.inputs = inputs_of(inputs);
  part.to = nothing(size_);
  part.from = nothing(size_);
  part.to[static_cast<std::size_t>(root)] = part.inputs[0].bytes();
  std::vector<at::Tensor> places;
  if (root == rank_) {
    places = single_element(outputs, kName);
    expect_count(places.size(), size_, kName);
    for (const auto& place : places) {
      expect_same_type(place, input.scalar_type(), kName);
    }
    const auto& own = places[static_cast<std::size_t>(rank_)];
    expect_elements(own, input.numel(), kName);
    part.outputs =
        outputs_of(places, write_timing_of_lists(places, inputs, own, 0));
    part.from = bytes_of(part.outputs);
  }
  return issue(
      {.type = OpType::GATHER,
       .title = "shm:gather",
       .inputs = inputs,
       .outputs = std::move(places),
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_one(std::move(part))});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::scatter(
    std::vector<at::Tensor>& outputs,
    std::vector<std::vector<at::Tensor>>& inputs,
    const c10d::ScatterOptions& opts) {
  constexpr const char* kName = "scatter";
  const auto& output = single_element(outputs, kName);
  const int root = checked_root(opts.rootRank, size_, kName);
  AllToAllOperation part{
      .text = call_text(kName, output.scalar_type(), str("root ", root))};
  part.to = nothing(size_);
  part.from = nothing(size_);
  std::vector<at::Tensor> pieces;
  if (root == rank_) {
    pieces = single_element(inputs, kName);
    expect_count(pieces.size(), size_, kName);
    for (const auto& piece : pieces) {
      expect_same_type(piece, output.scalar_type(), kName);
    }
    expect_elements(
        pieces[static_cast<std::size_t>(rank_)], output.numel(), kName);
    part.inputs = inputs_of(pieces);
    part.to = bytes_of(part.inputs);
  }
  part.outputs = outputs_of(
      outputs,
      write_timing_of_lists(
          outputs, pieces, output, static_cast<std::size_t>(rank_)));
  part.from[static_cast<std::size_t>(root)] = part.outputs[0].bytes();
  return issue(
      {.type = OpType::SCATTER,
       .title = "shm:scatter",
       .inputs = std::move(pieces),
       .outputs = outputs,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_one(std::move(part))});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<std::int64_t>& output_split_sizes,
    std::vector<std::int64_t>& input_split_sizes,
    const c10d::AllToAllOptions& opts) {
  constexpr const char* kName = "all_to_all";
  expect_same_type(output, input.scalar_type(), kName);
  AllToAllOperation part{.text = call_text(kName, input.scalar_type())};
  CallMemory memory;
  memory.writes(output);
  memory.reads(input);
  part.inputs = inputs_of({input});
  part.outputs = outputs_of({output}, memory.write_timing());
  part.to = pieces_of(input, part.inputs[0].bytes(), input_split_sizes, size_);
  part.from =
      pieces_of(output, part.outputs[0].bytes(), output_split_sizes, size_);
  expect_count(
      part.from[static_cast<std::size_t>(rank_)].size(),
      part.to[static_cast<std::size_t>(rank_)].size(), kName);
  return issue(
      {.type = OpType::ALLTOALL_BASE,
       .title = "shm:all_to_all_single",
       .inputs = {input},
       .outputs = {output},
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_one(std::move(part))});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::alltoall(
    std::vector<at::Tensor>& outputs,
    std::vector<at::Tensor>& inputs,
    const c10d::AllToAllOptions& opts) {
  constexpr const char* kName = "all_to_all";
  expect_count(outputs.size(), size_, kName);
  expect_count(inputs.size(), size_, kName);
  const auto dtype = inputs[0].scalar_type();
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    expect_same_type(inputs[r], dtype, kName);
    expect_same_type(outputs[r], dtype, kName);
  }
  const auto own = static_cast<std::size_t>(rank_);
  expect_elements(outputs[own], inputs[own].numel(), kName);
  AllToAllOperation part{.text = call_text(kName, dtype)};
  part.inputs = inputs_of(inputs);
  part.outputs = outputs_of(
      outputs, write_timing_of_lists(outputs, inputs, outputs[own], own));
  part.to = bytes_of(part.inputs);
  part.from = bytes_of(part.outputs);
  return issue(
      {.type = OpType::ALLTOALL,
       .title = "shm:all_to_all",
       .inputs = inputs,
       .outputs = outputs,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_one(std::move(part))});
}

}  // namespace sherd::c10d_shm
