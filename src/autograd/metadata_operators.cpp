// SPDX-License-Identifier: Apache-2.0
#include "autograd/metadata_operators.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include "autograd/aten_operators.h"
#include "autograd/backward.h"
#include "autograd/managed_storage.h"

namespace sherd::autograd {
namespace {

// clang-format off
// Base names in namespace aten; is_plain_overload() sorts their overloads.
constexpr auto kMetadataOperators = std::to_array<std::string_view>({
    // Views.
    "_reshape_alias", "_unsafe_view", "adjoint", "alias", "as_strided",
    "broadcast_to", "chunk", "detach", "diagonal", "expand", "expand_as",
    "hsplit", "mH", "mT", "matrix_H", "movedim", "moveaxis", "narrow",
    "numpy_T", "permute", "select", "slice", "split", "split_with_sizes",
    "squeeze", "swapaxes", "swapdims", "t", "transpose",
    "unbind", "unfold", "unsqueeze", "view", "view_as", "vsplit",
    // These read only shape, dtype or autograd metadata. set_data() calls the first: adoption
    // itself must announce nothing.
    "_has_compatible_shallow_copy_type", "_version", "can_cast", "dim",
    "empty_like", "full_like", "is_complex", "is_contiguous",
    "is_floating_point", "is_inference",
    "is_leaf", "is_same_size", "is_signed", "new_empty",
    "new_empty_strided", "new_full", "new_ones", "new_zeros", "numel",
    "ones_like", "output_nr", "promote_types", "rand_like", "randint_like",
    "randn_like", "requires_grad_", "result_type", "retain_grad",
    "retains_grad", "size", "stride", "sym_numel", "sym_size",
    "sym_storage_offset", "sym_stride", "zeros_like",
});

// Views of which LibTorch cannot make others of another version. With gradients they count as a use,
// which publishes what is due before they are made.
constexpr auto kSeveralViews = std::to_array<std::string_view>(
    {"chunk", "hsplit", "split", "split_with_sizes", "unbind", "vsplit"});

// Operators with two tensors, of which only the shape or dtype is read.
constexpr auto kTwoTensors = std::to_array<std::string_view>({
    "_has_compatible_shallow_copy_type", "expand_as", "is_same_size",
    "result_type", "view_as",
});

// clang-format on

// These write flags of the tensor, but no bytes.
constexpr auto kFlagWriters =
    std::to_array<std::string_view>({"requires_grad_", "retain_grad"});

// An overload may differ from others of the same name: zeros_like.out writes, and narrow by a
// tensor reads that tensor.
bool is_plain_overload(const c10::FunctionSchema& schema) {
  const auto name = std::string_view(schema.name()).substr(kAten.size());
  if (schema.is_mutable()) {
    return std::ranges::find(kFlagWriters, name) != kFlagWriters.end();
  }
  const auto tensors = std::ranges::count_if(
      schema.arguments(), [](const c10::Argument& argument) {
        return argument.type()->isSubtypeOf(*c10::TensorType::get());
      });
  return tensors <= 1 ||
      std::ranges::find(kTwoTensors, name) != kTwoTensors.end();
}

// As LibTorch compares devices there: of a device without a number it takes the current one.
bool is_device_of(const at::Tensor& tensor, c10::Device device) {
  if (!device.is_cpu() && !device.has_index()) {
    device = c10::impl::getDeviceGuardImpl(device.type())->getDevice();
  }
  return tensor.device() == device;
}

// Whether a copy for the sake of this argument of `to` would be equal to the tensor.
bool keeps(
    const at::Tensor& tensor,
    const std::string& argument,
    const c10::IValue& value) {
  if (argument == "dtype") {
    return value.toScalarType() == tensor.scalar_type();
  }
  if (argument == "layout") {
    return value.toLayout() == tensor.layout();
  }
  if (argument == "device") {
    return is_device_of(tensor, value.toDevice());
  }
  if (argument == "copy") {
    return !value.toBool();
  }
  if (argument == "memory_format") {
    return value.toMemoryFormat() == c10::MemoryFormat::Preserve;
  }
  return argument == "non_blocking" || argument == "pin_memory";
}

}  // namespace

std::span<const std::string_view> metadata_operators() {
  return kMetadataOperators;
}

bool uses_metadata_only(const c10::OperatorHandle& op) {
  static const auto kOperators =
      aten_operators(kMetadataOperators, is_plain_overload);
  static const auto kSeveral = aten_operators(kSeveralViews, is_plain_overload);
  return kOperators.contains(op) &&
      !(records_gradients() && kSeveral.contains(op));
}

bool returns_its_argument(
    const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (op.operator_name().name != "aten::to") {
    return false;
  }
  const auto& arguments = op.schema().arguments();
  const auto* values = &stack[stack.size() - arguments.size()];
  const at::Tensor& tensor = values[0].toTensor();
  const auto* tag = tag_of(tensor);
  if (tag != nullptr && tag->instead.defined()) {
    return false;  // What it shows may be of another dtype.
  }
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (!values[i].isNone() && !keeps(tensor, arguments[i].name(), values[i])) {
      return false;
    }
  }
  return true;
}

}  // namespace sherd::autograd
