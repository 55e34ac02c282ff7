// SPDX-License-Identifier: Apache-2.0
//
// all-reduce, reduce and reduce-scatter.
#include <utility>
#include "base/check.h"
#include "comm/shm_backend/backend_issue.h"
#include "comm/shm_backend/fold.h"

namespace sherd::comm::shm {
namespace {

using c10d::OpType;

// One tensor that becomes the fold of all ranks' on all of them, or on root.
struct InPlace {
  std::string text;
  TypedFold fold;
  TensorBytes tensor;
  Share share = Share::kAll;
  int root = 0;

  Status run(Stage& stage, Duration deadline) const {
    const auto slices =
        cut_elements(tensor.bytes(), fold.element_bytes, stage.ranks());
    Status outcome = reduce(
        stage, {.what = text, .deadline = deadline},
        {.slices = slices,
         .share = share,
         .root = root,
         .element_bytes = fold.element_bytes,
         .fold = fold.fold});
    if (outcome.ok() && (share == Share::kAll || root == stage.rank())) {
      tensor.give_back();
    }
    return outcome;
  }
};

// Pieces for all ranks, of which each gets the fold of its own.
struct Scattered {
  std::string text;
  TypedFold fold;
  std::vector<TensorBytes> inputs;  // One for each rank, or one for all.
  TensorBytes output;

  Status run(Stage& stage, Duration deadline) const {
    const auto slices = inputs.size() == 1
        ? cut(inputs[0].bytes(), stage.ranks())
        : bytes_of(inputs);
    Status outcome = reduce(
        stage, {.what = text, .deadline = deadline},
        {.slices = slices,
         .target = output.bytes(),
         .element_bytes = fold.element_bytes,
         .fold = fold.fold});
    if (outcome.ok()) {
      output.give_back();
    }
    return outcome;
  }
};

InPlace all_reduce_of(
    const at::Tensor& tensor, const c10d::ReduceOp& op, int ranks) {
  const auto dtype = tensor.scalar_type();
  return {
      .text = call_text("all_reduce", dtype, name_of(op)),
      .fold = fold_of(op, dtype, ranks),
      .tensor = TensorBytes::in_place(tensor)};
}

// `input` holds a piece for each rank.
Scattered scattered(
    const at::Tensor& output,
    const at::Tensor& input,
    const c10d::ReduceOp& op,
    int ranks) {
  constexpr const char* kName = "reduce_scatter";
  const auto dtype = output.scalar_type();
  expect_same_type(input, dtype, kName);
  SHERD_CHECK(
      input.numel() == output.numel() * ranks, "[comm] ", kName, ": expected ",
      output.numel() * ranks, " elements, ", output.numel(),
      " for each rank, found ", input.numel());
  return {
      .text = call_text(kName, dtype, name_of(op)),
      .fold = fold_of(op, dtype, ranks),
      .inputs = inputs_of({input}),
      .output = TensorBytes::output(output)};
}

}  // namespace

c10::intrusive_ptr<c10d::Work> ShmBackend::allreduce(
    std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) {
  const auto& tensor = only(tensors, "all_reduce");
  return issue(
      {.type = OpType::ALLREDUCE,
       .title = "shm:all_reduce",
       .inputs = tensors,
       .outputs = tensors,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(std::vector<InPlace>{
           all_reduce_of(tensor, opts.reduceOp, count())})});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::allreduce_coalesced(
    std::vector<at::Tensor>& tensors,
    const c10d::AllreduceCoalescedOptions& opts) {
  std::vector<InPlace> parts;
  for (const auto& tensor : tensors) {
    parts.push_back(all_reduce_of(tensor, opts.reduceOp, count()));
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
  const auto& tensor = only(tensors, "reduce");
  InPlace part = all_reduce_of(tensor, opts.reduceOp, count());
  part.root = checked_root(opts.rootRank, count(), "reduce");
  part.share = Share::kRoot;
  part.text = call_text(
      "reduce", tensor.scalar_type(),
      str(name_of(opts.reduceOp), ", root ", part.root));
  return issue(
      {.type = OpType::REDUCE,
       .title = "shm:reduce",
       .inputs = tensors,
       .outputs = tensors,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(std::vector<InPlace>{std::move(part)})});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::reduce_scatter(
    std::vector<at::Tensor>& outputs,
    std::vector<std::vector<at::Tensor>>& inputs,
    const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kName = "reduce_scatter";
  const auto& output = only(outputs, kName);
  auto& pieces = only(inputs, kName);
  expect_count(pieces.size(), count(), kName);
  const auto dtype = output.scalar_type();
  for (const auto& piece : pieces) {
    expect_same_type(piece, dtype, kName);
  }
  expect_elements(
      output, pieces[static_cast<std::size_t>(rank_)].numel(), kName);
  Scattered part{
      .text = call_text(kName, dtype, name_of(opts.reduceOp)),
      .fold = fold_of(opts.reduceOp, dtype, count()),
      .inputs = inputs_of(pieces),
      .output = TensorBytes::output(output)};
  return issue(
      {.type = OpType::REDUCE_SCATTER,
       .title = "shm:reduce_scatter",
       .inputs = pieces,
       .outputs = outputs,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(std::vector<Scattered>{std::move(part)})});
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
       .run = run_all(std::vector<Scattered>{
           scattered(output, input, opts.reduceOp, count())})});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outputs,
    std::vector<at::Tensor>& inputs,
    const c10d::ReduceScatterOptions& opts) {
  expect_count(outputs.size(), inputs.size(), "reduce_scatter_coalesced");
  std::vector<Scattered> parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    parts.push_back(scattered(outputs[i], inputs[i], opts.reduceOp, count()));
  }
  return issue(
      {.type = OpType::REDUCE_SCATTER_TENSOR_COALESCED,
       .title = "shm:reduce_scatter_tensor_coalesced",
       .inputs = inputs,
       .outputs = outputs,
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = run_all(std::move(parts))});
}

}  // namespace sherd::comm::shm
