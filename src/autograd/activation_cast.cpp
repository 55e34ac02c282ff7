// SPDX-License-Identifier: Apache-2.0
#include "autograd/activation_cast.h"

#include <array>
#include <cstddef>
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

bool needs_cast(const at::Tensor& tensor, c10::ScalarType dtype) {
  if (!tensor.defined() || !at::isFloatingType(tensor.scalar_type()) ||
      tensor.scalar_type() == dtype) {
    return false;
  }
  const auto* tag = tag_of(tensor);
  return tag == nullptr || tag->casts.parameters;
}

void cast_value(c10::IValue& value, c10::ScalarType dtype) {
  if (value.isTensor()) {
    if (needs_cast(value.toTensor(), dtype)) {
      value = value.toTensor().to(dtype);
    }
  } else if (value.isTensorList()) {
    // A copy of the list, because the caller may keep the one on the stack.
    auto cast = value.toTensorList().copy();
    for (std::size_t i = 0; i < cast.size(); ++i) {
      if (const at::Tensor tensor = cast.get(i); needs_cast(tensor, dtype)) {
        cast.set(i, tensor.to(dtype));
      }
    }
    value = std::move(cast);
  }
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
  if (!is_cast_operator(op) && !returns_rows_of_parameters(op)) {
    return;
  }
  for (auto i = stack.size() - op.schema().returns().size(); i < stack.size();
       ++i) {
    cast_value(stack[i], dtype);
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
  const auto arguments = op.schema().arguments().size();
  const auto begin = stack.size() - arguments;
  const auto end = keeps_parameters(op) ? begin + 1 : stack.size();
  for (auto i = begin; i < end; ++i) {
    cast_value(stack[i], dtype);
  }
}

}  // namespace sherd::autograd
