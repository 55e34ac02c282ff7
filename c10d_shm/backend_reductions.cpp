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

// One tensor that becomes the fold of all ranks' on all of them, or on root.
struct AllReduceOperation {
  std::string text;
  TypedReduceKernel kernel;
  TensorBytes tensor;
  ResultRecipients recipients = ResultRecipients::kAll;
  int root = 0;
  bool written = true;

  Status run(ShmCommunicator& communicator, Duration deadline) const {
    const auto slices = cut_elements(
        tensor.bytes(), kernel.element_bytes, communicator.ranks());
    return reduce(
        communicator, {.what = text, .deadline = deadline},
        {.slices = slices,
         .recipients = recipients,
         .root = root,
         .element_bytes = kernel.element_bytes,
         .kernel = kernel.kernel});
  }
  void copy_back() const {
    if (written) {
      tensor.copy_back();
    }
  }
};

// Pieces for all ranks, of which each gets the fold of its own.
struct ReduceScatterOperation {
  std::string text;
  TypedReduceKernel kernel;
  std::vector<TensorBytes> inputs;  // One for each rank, or one for all.
  TensorBytes output;

  Status run(ShmCommunicator& communicator, Duration deadline) const {
    const auto slices = inputs.size() == 1
        ? cut(inputs[0].bytes(), communicator.ranks())
        : bytes_of(inputs);
    return reduce(
        communicator, {.what = text, .deadline = deadline},
        {.slices = slices,
         .target = output.bytes(),
         .element_bytes = kernel.element_bytes,
         .kernel = kernel.kernel});
  }
  void copy_back() const { output.copy_back(); }
};

AllReduceOperation all_reduce_of(
    const at::Tensor& tensor,
    const c10d::ReduceOp& op,
    int ranks,
    WriteTiming writes = WriteTiming::kDirectly) {
  const auto dtype = tensor.scalar_type();
  return {
      .text = call_text("all_reduce", dtype, reduce_op_name(op)),
      .kernel = reduce_kernel_of(op, dtype, ranks),
      .tensor = TensorBytes::in_place(tensor, writes)};
}

constexpr const char* kReduceScatter = "reduce_scatter";

void expect_pieces(
    const at::Tensor& output, const at::Tensor& input, int ranks) {
  expect_same_type(input, output.scalar_type(), kReduceScatter);
  SHERD_CHECK(
      input.numel() == output.numel() * ranks, "[world] ", kReduceScatter,
      ": expected ", output.numel() * ranks, " elements, ", output.numel(),
      " for each rank, found ", input.numel());
}

// Each input holds a piece for each rank; that of this one may lie where the
// output is, because nobody else reads it.
std::vector<ReduceScatterOperation> reduce_scatter_operations(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& inputs,
    const c10d::ReduceOp& op,
    int rank,
    int ranks) {
  CallMemory memory;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expect_pieces(outputs[i], inputs[i], ranks);
    memory.writes(outputs[i]);
    const auto own = cut(extent_of(inputs[i]), ranks);
    if (!same_place(
            own[static_cast<std::size_t>(rank)], extent_of(outputs[i]))) {
      memory.reads(inputs[i]);
    }
  }
  const WriteTiming writes = memory.write_timing();
  std::vector<ReduceScatterOperation> parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto dtype = outputs[i].scalar_type();
    parts.push_back(
        {.text = call_text(kReduceScatter, dtype, reduce_op_name(op)),
         .kernel = reduce_kernel_of(op, dtype, ranks),
         .inputs = inputs_of({inputs[i]}),
         .output = TensorBytes::output(outputs[i], writes)});
  }
  return parts;
}

}  // namespace

c10::intrusive_ptr<c10d::Work> ShmBackend::allreduce(
    std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) {
  const auto& tensor = single_element(tensors, "all_reduce");
  return issue(
      {.type = OpType::ALLREDUCE,
       .title = "shm:all_reduce",
       .inputs = tensors,
       .outputs = tensors,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(std::vector<AllReduceOperation>{
           all_reduce_of(tensor, opts.reduceOp, size_)})});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::allreduce_coalesced(
    std::vector<at::Tensor>& tensors,
    const c10d::AllreduceCoalescedOptions& opts) {
  CallMemory memory;
  memory.writes(tensors);
  const WriteTiming writes = memory.write_timing();
  std::vector<AllReduceOperation> parts;
  for (const auto& tensor : tensors) {
    parts.push_back(all_reduce_of(tensor, opts.reduceOp, size_, writes));
  }
  return issue(
      {.type = OpType::ALLREDUCE_COALESCED,
       .title = "shm:all_reduce_coalesced",
       .inputs = tensors,
       .outputs = tensors,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(std::move(parts))});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::reduce(
    std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& opts) {
  const auto& tensor = single_element(tensors, "reduce");
  const auto dtype = tensor.scalar_type();
  const int root = checked_root(opts.rootRank, size_, "reduce");
  AllReduceOperation part{
      .text = call_text(
          "reduce", dtype, str(reduce_op_name(opts.reduceOp), ", root ", root)),
      .kernel = reduce_kernel_of(opts.reduceOp, dtype, size_),
      .tensor = root == rank_ ? TensorBytes::in_place(tensor)
                              : TensorBytes::input(tensor),
      .recipients = ResultRecipients::kRoot,
      .root = root,
      .written = root == rank_};
  return issue(
      {.type = OpType::REDUCE,
       .title = "shm:reduce",
       .inputs = tensors,
       .outputs = tensors,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(std::vector<AllReduceOperation>{std::move(part)})});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::reduce_scatter(
    std::vector<at::Tensor>& outputs,
    std::vector<std::vector<at::Tensor>>& inputs,
    const c10d::ReduceScatterOptions& opts) {
  const auto& output = single_element(outputs, kReduceScatter);
  auto& pieces = single_element(inputs, kReduceScatter);
  expect_count(pieces.size(), size_, kReduceScatter);
  const auto own = static_cast<std::size_t>(rank_);
  const auto dtype = output.scalar_type();
  CallMemory memory;
  memory.writes(output);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    expect_same_type(pieces[i], dtype, kReduceScatter);
    memory.reads_unless_at(pieces[i], i == own ? extent_of(output) : Bytes());
  }
  expect_elements(output, pieces[own].numel(), kReduceScatter);
  ReduceScatterOperation part{
      .text = call_text(kReduceScatter, dtype, reduce_op_name(opts.reduceOp)),
      .kernel = reduce_kernel_of(opts.reduceOp, dtype, size_),
      .inputs = inputs_of(pieces),
      .output = TensorBytes::output(output, memory.write_timing())};
  return issue(
      {.type = OpType::REDUCE_SCATTER,
       .title = "shm:reduce_scatter",
       .inputs = pieces,
       .outputs = outputs,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(std::vector<ReduceScatterOperation>{std::move(part)})});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& opts) {
  return issue(
      {.type = OpType::_REDUCE_SCATTER_BASE,
       .title = "shm:reduce_scatter_tensor",
       .inputs = {input},
       .outputs = {output},
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(reduce_scatter_operations(
           {output}, {input}, opts.reduceOp, rank_, size_))});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outputs,
    std::vector<at::Tensor>& inputs,
    const c10d::ReduceScatterOptions& opts) {
  expect_count(outputs.size(), inputs.size(), "reduce_scatter_coalesced");
  return issue(
      {.type = OpType::REDUCE_SCATTER_TENSOR_COALESCED,
       .title = "shm:reduce_scatter_tensor_coalesced",
       .inputs = inputs,
       .outputs = outputs,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(reduce_scatter_operations(
           outputs, inputs, opts.reduceOp, rank_, size_))});
}

}  // namespace sherd::c10d_shm
