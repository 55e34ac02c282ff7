// SPDX-License-Identifier: Apache-2.0
//
// all-reduce, reduce and reduce-scatter.
#include <utility>
#include "base/check.h"
#include "c10d_shm/collective_operation.h"
#include "c10d_shm/reduce_kernels.h"

namespace sherd::c10d_shm {
namespace {

using c10d::OpType;

constexpr const char* kReduceScatter = "reduce_scatter";

// "sum", or "sum, part 2 of 3".
std::string reduction_text(
    const c10d::ReduceOp& op, std::size_t index = 0, std::size_t parts = 1) {
  std::string text = reduce_op_text(op);
  if (parts > 1) {
    text += ", " + part_text(index, parts);
  }
  return text;
}

// Replaces `tensor` by the reduction over all ranks, on the ranks given by `arguments.recipients`.
CollectivePart part_in_place(
    std::string text, TensorBytes tensor, ReduceArguments arguments) {
  CollectivePart part;
  part.run = [text = std::move(text), tensor = std::move(tensor),
              arguments = std::move(arguments)](
                 ShmCommunicator& communicator, Duration deadline) {
    ReduceArguments call = arguments;
    const auto slices = cut_elements(
        tensor.bytes(), call.kernel.element_bytes, communicator.ranks());
    call.slices = slices;
    return reduce(communicator, {.what = text, .deadline = deadline}, call);
  };
  return part;
}

CollectivePart all_reduce_part(
    const at::Tensor& tensor,
    const c10d::ReduceOp& op,
    const std::string& reduction,
    int ranks,
    WriteTiming writes = WriteTiming::kDirectly) {
  const auto dtype = tensor.scalar_type();
  auto kernel = reduce_kernel_of(op, dtype, ranks);
  const auto bytes = TensorBytes::in_place(tensor, writes);
  auto part = part_in_place(
      call_text("all_reduce", dtype, reduction), bytes,
      {.recipients = ReduceArguments::Recipients::kAll,
       .kernel = std::move(kernel)});
  part.outputs = {bytes};
  return part;
}

// `input` is either one tensor that holds a piece for each rank, or one for each rank.
CollectivePart reduce_scatter_part(
    const at::Tensor& output,
    const Tensors& input,
    const c10d::ReduceOp& op,
    const std::string& reduction,
    int ranks,
    WriteTiming writes) {
  const auto dtype = output.scalar_type();
  CollectivePart part;
  part.outputs = {TensorBytes::output(output, writes)};
  part.run = [text = call_text(kReduceScatter, dtype, reduction),
              kernel = reduce_kernel_of(op, dtype, ranks),
              inputs = inputs_of(input), target = part.outputs[0]](
                 ShmCommunicator& communicator, Duration deadline) {
    const auto slices = pieces_of(inputs, communicator.ranks());
    return reduce(
        communicator, {.what = text, .deadline = deadline},
        {.slices = slices, .target = target.bytes(), .kernel = kernel});
  };
  return part;
}

void expect_pieces(
    const at::Tensor& output, const at::Tensor& input, int ranks) {
  expect_same_type(input, output.scalar_type(), kReduceScatter);
  SHERD_CHECK(
      input.numel() == output.numel() * ranks, "[c10d_shm] ", kReduceScatter,
      ": expected ", output.numel() * ranks, " elements, ", output.numel(),
      " for each rank, found ", input.numel());
}

// Each input holds a piece for each rank; that of this rank may lie where the output is, because no
// other rank reads it.
std::vector<CollectivePart> reduce_scatter_parts(
    const Tensors& outputs,
    const Tensors& inputs,
    const c10d::ReduceOp& op,
    int rank,
    int ranks) {
  CallMemory memory;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expect_pieces(outputs[i], inputs[i], ranks);
    memory.writes(outputs[i]);
    if (!same_place(
            extent_of_piece({inputs[i]}, rank, ranks), extent_of(outputs[i]))) {
      memory.reads(inputs[i]);
    }
  }
  const WriteTiming writes = memory.write_timing();
  std::vector<CollectivePart> parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    parts.push_back(reduce_scatter_part(
        outputs[i], {inputs[i]}, op, reduction_text(op, i, inputs.size()),
        ranks, writes));
  }
  return parts;
}

}  // namespace

C10dWork ShmBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const auto& tensor = single_element(tensors, "all_reduce");
  return issue(
      {OpType::ALLREDUCE, "shm:all_reduce", tensors, tensors,
       only(all_reduce_part(
           tensor, opts.reduceOp, reduction_text(opts.reduceOp), size_))},
      opts);
}

C10dWork ShmBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  CallMemory memory;
  memory.writes(tensors);
  const WriteTiming writes = memory.write_timing();
  std::vector<CollectivePart> parts;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    parts.push_back(all_reduce_part(
        tensors[i], opts.reduceOp,
        reduction_text(opts.reduceOp, i, tensors.size()), size_, writes));
  }
  return issue(
      {OpType::ALLREDUCE_COALESCED, "shm:all_reduce_coalesced", tensors,
       tensors, std::move(parts)},
      opts);
}

C10dWork ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const auto& tensor = single_element(tensors, "reduce");
  const auto dtype = tensor.scalar_type();
  const int root = checked_root(opts.rootRank, size_, "reduce");
  auto kernel = reduce_kernel_of(opts.reduceOp, dtype, size_);
  const auto bytes = root == rank_ ? TensorBytes::in_place(tensor)
                                   : TensorBytes::input(tensor);
  auto part = part_in_place(
      call_text(
          "reduce", dtype, str(reduce_op_text(opts.reduceOp), ", root ", root)),
      bytes,
      {.recipients = ReduceArguments::Recipients::kRoot,
       .root = root,
       .kernel = std::move(kernel)});
  if (root == rank_) {
    part.outputs = {bytes};
  }
  return issue(
      {OpType::REDUCE, "shm:reduce", tensors, tensors, only(std::move(part))},
      opts);
}

C10dWork ShmBackend::reduce_scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ReduceScatterOptions& opts) {
  const auto& output = single_element(outputs, kReduceScatter);
  const auto& pieces = single_element(inputs, kReduceScatter);
  expect_count(pieces.size(), size_, kReduceScatter);
  for (const auto& piece : pieces) {
    expect_same_type(piece, output.scalar_type(), kReduceScatter);
  }
  expect_elements(
      output, pieces[static_cast<std::size_t>(rank_)].numel(), kReduceScatter);
  CallMemory memory;
  memory.writes(output);
  memory.reads_pieces(pieces, rank_, extent_of(output));
  return issue(
      {OpType::REDUCE_SCATTER, "shm:reduce_scatter", pieces, outputs,
       only(reduce_scatter_part(
           output, pieces, opts.reduceOp, reduction_text(opts.reduceOp), size_,
           memory.write_timing()))},
      opts);
}

C10dWork ShmBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& opts) {
  return issue(
      {OpType::_REDUCE_SCATTER_BASE,
       "shm:reduce_scatter_tensor",
       {input},
       {output},
       reduce_scatter_parts({output}, {input}, opts.reduceOp, rank_, size_)},
      opts);
}

C10dWork ShmBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  expect_count(outputs.size(), inputs.size(), "reduce_scatter_coalesced");
  return issue(
      {kCoalescedReduceScatter, "shm:reduce_scatter_tensor_coalesced", inputs,
       outputs,
       reduce_scatter_parts(outputs, inputs, opts.reduceOp, rank_, size_)},
      opts);
}

}  // namespace sherd::c10d_shm
