// SPDX-License-Identifier: Apache-2.0
//
// Operators of the checking device: one fallback records the accesses that an operator's schema
// describes, lends its arguments to the CPU's kernel and takes its results; operators that make
// tensors, views and copies are written out.
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "support/checking_device/device_state.h"

namespace sherd::test {
namespace {

constexpr auto kDevice = c10::kPrivateUse1;
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool is_here(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDevice;
}

// The size from the first element to the end of the last one.
std::size_t span_bytes(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return 0;
  }
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return static_cast<std::size_t>(last + 1) * tensor.element_size();
}

DeviceAccess access_of(const at::Tensor& tensor, AccessKind kind) {
  return {tensor.const_data_ptr(), span_bytes(tensor), kind};
}

at::Tensor lend(const at::Tensor& tensor) {
  return at::from_blob(
      host_view(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
      at::dtype(tensor.scalar_type()));
}

// Makes a tensor that a CPU kernel has created the device's.
at::Tensor adopt_result(
    const at::Tensor& made, c10::Device device, const std::string& name) {
  const auto bytes = made.storage().nbytes();
  auto data = c10::GetAllocator(kDevice)->allocate(bytes);
  if (bytes > 0) {
    std::memcpy(host_view(data.get()), made.storage().data(), bytes);
  }
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), bytes, std::move(data),
      c10::GetAllocator(kDevice), /*resizable=*/false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), kKeys, made.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(made.storage_offset());
  impl->set_sizes_and_strides(made.sizes(), made.strides());
  note_access(device, name, access_of(tensor, AccessKind::kWrite));
  return tensor;
}

// The arguments of one call; those on the device are lent to the CPU.
class Lender {
 public:
  c10::IValue lend_argument(const c10::IValue& value, AccessKind kind) {
    if (value.isTensor()) {
      return lend_one(value.toTensor(), kind);
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> lent;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        lent.push_back(lend_one(tensor, kind));
      }
      return lent;
    }
    if (value.isList() && !value.toListRef().empty() &&
        value.toListRef()[0].isTensor()) {
      c10::List<std::optional<at::Tensor>> lent;
      for (const auto& element : value.toListRef()) {
        lent.push_back(
            element.isTensor()
                ? std::optional(lend_one(element.toTensor(), kind))
                : std::nullopt);
      }
      return lent;
    }
    return value.isDevice() && value.toDevice().type() == kDevice
        ? c10::IValue(c10::Device(c10::kCPU))
        : value;
  }

  // What the caller gets for a result of the CPU's kernel.
  at::Tensor take_back(const at::Tensor& result, const std::string& name) {
    if (!result.defined()) {
      return result;
    }
    for (const auto& [ours, lent] : lent_) {
      if (lent.is_same(result)) {
        if (lent.numel() != ours.numel()) {
          grow(ours, adopt_result(lent, device(), name));
        }
        return ours;
      }
    }
    for (const auto& [ours, lent] : lent_) {
      if (lent.storage().is_alias_of(result.storage())) {
        const auto* first =
            static_cast<char*>(host_view(ours.storage().data()));
        const auto offset =
            (static_cast<const char*>(result.const_data_ptr()) - first) /
            static_cast<std::ptrdiff_t>(result.element_size());
        return at::cpu::as_strided(
            ours, result.sizes(), result.strides(), offset);
      }
    }
    return adopt_result(result, device(), name);
  }

  c10::Device device() const { return device_; }
  const std::vector<DeviceAccess>& accesses() const { return accesses_; }

 private:
  at::Tensor lend_one(const at::Tensor& tensor, AccessKind kind) {
    if (!is_here(tensor)) {
      return tensor;
    }
    device_ = tensor.device();
    accesses_.push_back(access_of(tensor, kind));
    // An operator may give an empty result its size.
    const bool may_grow = kind == AccessKind::kWrite && tensor.numel() == 0;
    lent_.emplace_back(
        tensor,
        may_grow ? at::empty(tensor.sizes(), at::dtype(tensor.scalar_type()))
                 : lend(tensor));
    return lent_.back().second;
  }

  static void grow(const at::Tensor& tensor, const at::Tensor& grown) {
    auto* impl = tensor.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(grown.storage());
    impl->set_sizes_and_strides(grown.sizes(), grown.strides());
  }

  c10::Device device_{kDevice, thread_state().device};
  // The device's tensor, and the CPU's.
  std::vector<std::pair<at::Tensor, at::Tensor>> lent_;
  std::vector<DeviceAccess> accesses_;
};

void take_back_results(
    Lender& lender,
    const c10::OperatorHandle& op,
    const std::string& name,
    torch::jit::Stack& stack) {
  const auto count = op.schema().returns().size();
  for (auto i = stack.size() - count; i < stack.size(); ++i) {
    auto& value = stack[i];
    if (value.isTensor()) {
      value = lender.take_back(value.toTensor(), name);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> taken;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        taken.push_back(lender.take_back(tensor, name));
      }
      value = taken;
    } else {  // The host learns a value, as from at::equal().
      synchronise_with_host(lender.device(), name);
    }
  }
}

// As on CUDA, an operand on the CPU must be a number without dimensions; kernels that update many
// tensors take none at all.
void check_operand(const std::string& name, const at::Tensor& tensor) {
  const bool of_many =
      name.starts_with("aten::_fused_") || name.starts_with("aten::_amp_");
  TORCH_CHECK(
      !tensor.defined() || is_here(tensor) || (tensor.dim() == 0 && !of_many),
      "[checking device] ", name, " has an operand on ", tensor.device(),
      " of shape ", tensor.sizes(), "; expected all of them on the device");
}

void check_operands(const std::string& name, const c10::IValue& value) {
  if (value.isTensor()) {
    check_operand(name, value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      check_operand(name, tensor);
    }
  }
}

// As on CUDA, an operator draws random numbers from a generator of the device.
void give_generator(
    const c10::FunctionSchema& schema,
    c10::Device device,
    c10::IValue* arguments) {
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == "generator" && arguments[i].isNone()) {
      arguments[i] = device_generator(device.index());
    }
  }
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.operator_name().name;
  const auto first = stack->size() - schema.arguments().size();
  Lender lender;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    auto& value = (*stack)[first + i];
    check_operands(name, value);
    value = lender.lend_argument(
        value, writes ? AccessKind::kWrite : AccessKind::kRead);
  }
  give_generator(schema, lender.device(), stack->data() + first);
  const c10::DeviceGuard guard(lender.device());
  begin_operator(lender.device(), name, lender.accesses());
  op.callBoxed(stack);
  take_back_results(lender, op, name, *stack);
}

at::Tensor make_empty(
    c10::IntArrayRef sizes,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> /*layout*/,
    std::optional<c10::Device> device,
    std::optional<bool> /*pin*/,
    std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      sizes, c10::GetAllocator(kDevice), kKeys, c10::dtype_or_default(dtype),
      format);
}

at::Tensor make_empty_strided(
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> /*layout*/,
    std::optional<c10::Device> device,
    std::optional<bool> /*pin*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      sizes, strides, c10::GetAllocator(kDevice), kKeys,
      c10::dtype_or_default(dtype));
}

bool is_pinned_block(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() &&
      is_pinned(tensor.const_data_ptr());
}

// Copies from or to pinned memory while the host goes on.
void copy_beside_host(
    c10::Device device, const at::Tensor& from, const at::Tensor& to) {
  const bool to_host = !is_here(to);
  if (to_host) {
    to.copy_(lend(from));
    const auto* first = static_cast<const char*>(to.const_data_ptr());
    note_host_copy(
        device, to.data_ptr(), {first, first + to.nbytes()}, to_host);
    return;
  }
  auto bytes = bytes_for_device(device, from.const_data_ptr(), from.nbytes());
  lend(to).copy_(
      at::from_blob(bytes.data(), from.sizes(), at::dtype(from.scalar_type())));
  note_host_copy(device, from.data_ptr(), bytes, to_host);
}

// Copies to the host wait, and so do copies from it, unless the caller says that its memory stays.
// A non-blocking copy of pinned memory, in either direction, lets the host go on.
at::Tensor copy_from(
    const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto device = is_here(to) ? to.device() : from.device();
  std::vector<DeviceAccess> accesses;
  if (is_here(from)) {
    accesses.push_back(access_of(from, AccessKind::kRead));
  }
  if (is_here(to)) {
    accesses.push_back(access_of(to, AccessKind::kWrite));
  }
  begin_operator(device, "aten::copy_", accesses);
  if (non_blocking && is_pinned_block(is_here(to) ? from : to)) {
    copy_beside_host(device, from, to);
    return to;
  }
  (is_here(to) ? lend(to) : to).copy_(is_here(from) ? lend(from) : from);
  if (!is_here(to) || (!is_here(from) && !non_blocking)) {
    synchronise_with_host(device, "aten::copy_ between host and device");
  }
  return to;
}

at::Scalar read_scalar(const at::Tensor& tensor) {
  begin_operator(
      tensor.device(), "aten::item", {access_of(tensor, AccessKind::kRead)});
  synchronise_with_host(tensor.device(), "aten::item");
  return lend(tensor).item();
}

// The CPU's kernel resizes an empty result, which is impossible for lent memory.
at::Tensor& arange(
    const at::Scalar& start,
    const at::Scalar& end,
    const at::Scalar& step,
    at::Tensor& out) {
  const auto on_host =
      at::arange(start, end, step, at::dtype(out.scalar_type()));
  const auto made = at::empty(on_host.sizes(), out.options());
  begin_operator(
      out.device(), "aten::arange", {access_of(made, AccessKind::kWrite)});
  lend(made).copy_(on_host);
  return at::cpu::set_(
      out, made.storage(), made.storage_offset(), made.sizes(), made.strides());
}

at::Tensor as_strided(
    const at::Tensor& tensor,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    std::optional<std::int64_t> offset) {
  return at::cpu::as_strided(tensor, sizes, strides, offset);
}

at::Tensor view(const at::Tensor& tensor, c10::IntArrayRef sizes) {
  return at::native::view(tensor, sizes);
}

at::Tensor reshape_alias(
    const at::Tensor& tensor,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides) {
  return at::native::_reshape_alias(tensor, sizes, strides);
}

at::Tensor& set_storage(
    at::Tensor& tensor,
    at::Storage storage,
    std::int64_t offset,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides) {
  return at::cpu::set_(tensor, std::move(storage), offset, sizes, strides);
}

// The CPU's kernel takes no generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(
    const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, at::kBool)};
  }
  const auto kept = at::empty_like(input).bernoulli_(1 - p);
  return {input.mul(kept).div_(1 - p), kept.to(at::kBool)};
}

// LibTorch asks this before set_data() lets a tensor become another one; it only knows its own
// devices.
bool may_become(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.layout() == other.layout();
}

}  // namespace

void register_operators() {
  static torch::Library aten(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
      __LINE__);
  aten.impl("empty.memory_format", make_empty);
  aten.impl("empty_strided", make_empty_strided);
  aten.impl("_copy_from", copy_from);
  aten.impl("_local_scalar_dense", read_scalar);
  aten.impl("arange.start_out", arange);
  aten.impl("as_strided", as_strided);
  aten.impl("view", view);
  aten.impl("_reshape_alias", reshape_alias);
  aten.impl("_has_compatible_shallow_copy_type", may_become);
  aten.impl("native_dropout", native_dropout);
  aten.impl("set_.source_Storage_storage_offset", set_storage);
  static torch::Library others(
      torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__,
      __LINE__);
  others.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace sherd::test
