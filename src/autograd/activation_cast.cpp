// SPDX-License-Identifier: Apache-2.0
#include "autograd/activation_cast.h"

#include <array>
#include <unordered_set>

#include <ATen/core/Tensor.h>

#include "autograd/aten_operators.h"
#include "autograd/managed_storage.h"

namespace sherd::autograd {
namespace {

// Base names in namespace aten, without embedding, which has no activations.
constexpr auto kCastOperators = std::to_array<std::string_view>({
    // Matrix products.
    "addbmm",
    "addmm",
    "addmv",
    "baddbmm",
    "bilinear",
    "bmm",
    "dot",
    "einsum",
    "inner",
    "linear",
    "matmul",
    "mm",
    "mv",
    "tensordot",
    // Convolutions.
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    // Norms.
    "_fused_rms_norm",
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "native_group_norm",
    "native_layer_norm",
    "rms_norm",
    // Recurrent layers.
    "gru",
    "gru_cell",
    "lstm",
    "lstm_cell",
    "rnn_relu",
    "rnn_relu_cell",
    "rnn_tanh",
    "rnn_tanh_cell",
    // The other operators that refuse mixed arguments.
    "embedding_bag",
    "prelu",
});

// Only the first argument of these is cast: they write their running statistics although their
// schema does not say so, and a cast would lose that.
constexpr auto kFirstOnly =
    std::to_array<std::string_view>({"batch_norm", "instance_norm"});

// These have no activations to cast, but results.
constexpr auto kResultsOnly = std::to_array<std::string_view>({"embedding"});

std::unordered_set<c10::OperatorHandle> without_writers(
    std::span<const std::string_view> names) {
  return aten_operators(names, [](const c10::FunctionSchema& schema) {
    return !schema.is_mutable();
  });
}

bool is_cast_operator(const c10::OperatorHandle& op) {
  static const auto kOperators = without_writers(kCastOperators);
  return kOperators.contains(op);
}

void cast_tensors(std::span<c10::IValue> values, c10::ScalarType dtype) {
  replace_tensors(values, [dtype](const at::Tensor& tensor) {
    if (!tensor.defined() || !at::isFloatingType(tensor.scalar_type()) ||
        tensor.scalar_type() == dtype) {
      return tensor;
    }
    const auto* tag = tag_of(tensor);
    return tag == nullptr || tag->casts.parameters ? tensor.to(dtype) : tensor;
  });
}

}  // namespace

bool keeps_parameters(const c10::OperatorHandle& op) {
  static const auto kOfFirst = without_writers(kFirstOnly);
  return kOfFirst.contains(op);
}

bool returns_rows_of_parameters(const c10::OperatorHandle& op) {
  static const auto kRows = without_writers(kResultsOnly);
  return kRows.contains(op);
}

void cast_results(
    const c10::OperatorHandle& op,
    c10::ScalarType dtype,
    torch::jit::Stack& stack) {
  if (is_cast_operator(op) || returns_rows_of_parameters(op)) {
    cast_tensors(std::span(stack).last(op.schema().returns().size()), dtype);
  }
}

std::span<const std::string_view> activation_cast_operators() {
  return kCastOperators;
}

void cast_activations(
    const c10::OperatorHandle& op,
    c10::ScalarType dtype,
    torch::jit::Stack& stack) {
  if (!is_cast_operator(op)) {
    return;
  }
  const auto arguments = std::span(stack).last(op.schema().arguments().size());
  cast_tensors(keeps_parameters(op) ? arguments.first(1) : arguments, dtype);
}

}  // namespace sherd::autograd
