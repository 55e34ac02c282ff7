// SPDX-License-Identifier: Apache-2.0
#include "autograd/param_key.h"
#include "autograd/backward.h"

#include <algorithm>
#include <utility>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <sherd/autograd/touch.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include "autograd/activation_cast.h"
#include "autograd/aten_operators.h"
#include "autograd/metadata_operators.h"
#include "base/check.h"
#include "base/interrupt.h"
#include "compat/parameter_key.h"

namespace sherd::autograd {
namespace {

// The key is above autograd, so that one operator makes one announcement.
constexpr auto kParamKey = compat::kParameterKey;
constexpr c10::DispatchKeySet kBelow(
    c10::DispatchKeySet::FULL_AFTER, kParamKey);

// The keys of torch.func, such as for grad() and vmap(), which would take part in what gathers a
// unit.
constexpr c10::DispatchKeySet kTransforms(
    {c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
     c10::DispatchKey::FuncTorchDynamicLayerBackMode});

using ParameterUses = c10::SmallVector<ParameterUse, 4>;

void add_use(ParameterUses& uses, const at::Tensor& tensor, bool written) {
  // The key test comes first: nearly every argument fails it.
  if (!tensor.defined() || !tensor.key_set().has(kParamKey)) {
    return;
  }
  if (const auto* tag = tag_of(tensor)) {
    uses.push_back({tag, tensor.unsafeGetTensorImpl(), written});
  }
}

void add_uses(ParameterUses& uses, const c10::IValue& value, bool written) {
  if (value.isTensor()) {
    add_use(uses, value.toTensor(), written);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) {
        add_use(uses, element.toTensor(), written);
      } else if (!element.isNone()) {
        return;  // It is a list of numbers.
      }
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      if (entry.value().isTensor()) {
        add_use(uses, entry.value().toTensor(), written);
      }
    }
  }
}

ParameterUses uses_of(
    const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  ParameterUses uses;
  const auto& arguments = schema.arguments();
  const auto first = stack.size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    add_uses(uses, stack[first + i], alias != nullptr && alias->isWrite());
  }
  return uses;
}

ParameterUseListener* listener_of(const ParameterUse& use) {
  return use.tag->listener.load(std::memory_order_acquire);
}

// Afterwards the uses of one listener are adjacent, and listeners are in the order in which the
// arguments name them, so that all ranks start gathers of several models in one order. Almost
// always there is one listener, but a teacher and a student may share an operator.
void group_by_listener(ParameterUses& uses) {
  auto rest = uses.begin();
  while (rest != uses.end()) {
    const auto* listener = listener_of(*rest);
    rest = std::stable_partition(
        rest, uses.end(), [listener](const ParameterUse& use) {
          return listener_of(use) == listener;
        });
  }
}

// Calls begin_use() of the listeners of all uses, one after the other, and end_use() of those that
// were called when it goes out of scope.
class ParameterUseScope {
 public:
  ParameterUseScope(ParameterUses& uses, const char* name) : uses_(uses) {
    group_by_listener(uses);
    if (!uses_.empty()) {
      check_may_use_parameters(name);
    }
    try {
      const std::span<const ParameterUse> all(uses_.data(), uses_.size());
      while (entered_ < all.size()) {
        const auto group = first_group(all.subspan(entered_));
        auto* listener = listener_of(group.front());
        SHERD_CHECK_AS(
            kFailedPrecondition, listener != nullptr, "[autograd] ", name,
            " uses a parameter of a sharded or replicated model whose handle "
            "was destroyed; keep the handle as long as the model or a graph of "
            "it is used");
        const c10::impl::ExcludeDispatchKeyGuard outside(kTransforms);
        listener->begin_use(group, name);
        entered_ += group.size();
      }
    } catch (...) {
      leave();
      throw;
    }
  }
  ~ParameterUseScope() { leave(); }
  ParameterUseScope(const ParameterUseScope&) = delete;
  ParameterUseScope& operator=(const ParameterUseScope&) = delete;

 private:
  // The first of these uses, as far as they have the same listener.
  static std::span<const ParameterUse> first_group(
      std::span<const ParameterUse> uses) {
    const auto last = std::ranges::find_if(uses, [&](const ParameterUse& use) {
      return listener_of(use) != listener_of(uses.front());
    });
    return {uses.begin(), last};
  }

  void leave() noexcept {
    std::span<const ParameterUse> left(uses_.data(), entered_);
    const c10::impl::ExcludeDispatchKeyGuard outside(kTransforms);
    while (!left.empty()) {
      const auto group = first_group(left);
      if (auto* listener = listener_of(group.front())) {
        listener->end_use(group);
      }
      left = left.subspan(group.size());
    }
    entered_ = 0;
  }

  ParameterUses& uses_;
  std::size_t entered_ = 0;
};

bool is_builtin(const c10::OperatorHandle& op) {
  return op.operator_name().name.starts_with(kAten);
}

void cast_inputs(
    const ParameterUses& uses,
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack) {
  for (const auto& use : uses) {
    const auto& casts = use.tag->casts;
    if (!casts.inputs && !casts.parameters) {
      continue;
    }
    const auto dtype = casts.parameters && !keeps_parameters(op)
        ? *casts.parameters
        : use.tag->instead.defined()
        ? use.tag->instead.scalar_type()
        : c10::typeMetaToScalarType(use.tensor->dtype());
    // The parameters are announced already.
    const c10::impl::ExcludeDispatchKeyGuard below(kParamKey);
    cast_activations(op, dtype, stack);
    return;
  }
}

at::Tensor shown(const at::Tensor& tensor) {
  const auto* tag = tensor.defined() ? tag_of(tensor) : nullptr;
  return tag != nullptr && tag->instead.defined()
      ? tag->instead.as_strided(
            tensor.sizes(), tensor.strides(), tensor.storage_offset())
      : tensor;
}

// Replaces the operator's arguments whose storage shows other values.
void show_instead(
    const ParameterUses& uses,
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack) {
  if (std::none_of(uses.begin(), uses.end(), [](const ParameterUse& use) {
        return use.tag->instead.defined();
      })) {
    return;
  }
  replace_tensors(std::span(stack).last(op.schema().arguments().size()), shown);
}

// A result may be the argument itself, as that of `to`. What a storage shows instead may be freed
// when the operator has ended, so such a result gets memory of its own.
void keep_results(
    const ParameterUses& uses,
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack) {
  for (const auto& use : uses) {
    const auto& instead = use.tag->instead;
    if (instead.defined()) {
      replace_tensors(
          std::span(stack).last(op.schema().returns().size()),
          [&instead](const at::Tensor& result) {
            return result.defined() && result.is_alias_of(instead)
                ? result.clone()
                : result;
          });
    }
  }
}

void cast_outputs(
    const ParameterUses& uses,
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack) {
  for (const auto& use : uses) {
    const auto& casts = use.tag->casts;
    const auto dtype = returns_rows_of_parameters(op) && !casts.outputs
        ? casts.parameters
        : casts.outputs;
    if (dtype) {
      // A derivative is not the output of a layer; a recomputation records gradients.
      if (!in_backward() || records_gradients()) {
        cast_results(op, *dtype, stack);
      }
      return;
    }
  }
}

void announce_and_call(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  if (uses_metadata_only(op) || returns_its_argument(op, *stack)) {
    const c10::impl::ExcludeDispatchKeyGuard below(kParamKey);
    op.redispatchBoxed(keys & kBelow, stack);
    return;
  }
  auto uses = uses_of(op.schema(), *stack);
  const ParameterUseScope scope(uses, op.operator_name().name.c_str());
  cast_inputs(uses, op, *stack);
  show_instead(uses, op, *stack);
  if (is_builtin(op)) {
    // The operators of which this one is made use the same, already announced tensors.
    const c10::impl::ExcludeDispatchKeyGuard below(kParamKey);
    op.redispatchBoxed(keys & kBelow, stack);
  } else {
    // A custom operator may use further weights inside, which must be announced.
    op.redispatchBoxed(keys & kBelow, stack);
  }
  keep_results(uses, op, *stack);
  cast_outputs(uses, op, *stack);
}

void announce(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  try {
    announce_and_call(op, keys, stack);
  } catch (const Error& error) {
    rethrow_translated(error);
  }
}

}  // namespace

void install_param_key() {
  static torch::Library library(
      torch::Library::IMPL, "_", kParamKey, __FILE__, __LINE__);
  [[maybe_unused]] static const bool installed = [] {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&announce>());
    return true;
  }();
}

namespace {

// A tensor in the storage, with the key, that has no elements yet.
c10::intrusive_ptr<c10::TensorImpl> keyed(
    const at::TensorOptions& options,
    const ManagedStorage& storage,
    std::int64_t offset) {
  const auto keys = at::empty({0}, options).key_set().add(kParamKey);
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(storage.storage()), keys,
      options.dtype());
  impl->set_storage_offset(offset);
  return impl;
}

class Placeholder final : public c10::TensorImpl {
 public:
  Placeholder(
      const at::Tensor& like,
      const ManagedStorage& storage,
      std::function<void()> dropped)
      : TensorImpl(
            c10::Storage(storage.storage()),
            like.key_set().add(kParamKey),
            like.dtype()),
        dropped_(std::move(dropped)) {
    set_sizes_contiguous(like.sizes());
  }
  // LibTorch destroys it at once if there are no weak references; otherwise it releases the
  // resources first.
  ~Placeholder() override { tell(); }
  Placeholder(const Placeholder&) = delete;
  Placeholder& operator=(const Placeholder&) = delete;

  void release_resources() override {
    tell();
    TensorImpl::release_resources();
  }

  void forget() { dropped_ = nullptr; }

 private:
  void tell() {
    if (const auto dropped = std::exchange(dropped_, nullptr)) {
      dropped();
    }
  }

  std::function<void()> dropped_;
};

Placeholder* placeholder_of(const at::Tensor& tensor) {
  return dynamic_cast<Placeholder*>(tensor.unsafeGetTensorImpl());
}

// Older versions of LibTorch have no such fields.
void move_grad_dtype(auto& from, auto& to) {
  if constexpr (requires { from.grad_dtype_; }) {
    to.grad_dtype_ = from.grad_dtype_;
    to.allow_grad_dtype_mismatch_ = from.allow_grad_dtype_mismatch_;
  }
}

}  // namespace

at::Tensor make_placeholder(
    const at::Tensor& like,
    const ManagedStorage& storage,
    std::function<void()> dropped) {
  const c10::InferenceMode off(false);
  return at::Tensor(
      c10::make_intrusive<Placeholder>(like, storage, std::move(dropped)));
}

bool is_placeholder(const at::Tensor& tensor) {
  return placeholder_of(tensor) != nullptr;
}

void disarm_placeholder(const at::Tensor& placeholder) {
  placeholder_of(placeholder)->forget();
}

void drop_view_base(const at::Tensor& parameter) {
  auto* view = torch::autograd::impl::get_view_autograd_meta(parameter);
  if (view == nullptr) {
    return;
  }
  auto plain = std::make_unique<torch::autograd::AutogradMeta>();
  plain->requires_grad_ = parameter.requires_grad();
  plain->name_ = std::move(view->name_);
  plain->grad_ = std::move(view->grad_);
  plain->grad_accumulator_ = std::move(view->grad_accumulator_);
  plain->hooks_ = std::move(view->hooks_);
  plain->cpp_hooks_list_ = std::move(view->cpp_hooks_list_);
  plain->post_acc_grad_hooks_ = std::move(view->post_acc_grad_hooks_);
  move_grad_dtype(*view, *plain);
  parameter.unsafeGetTensorImpl()->set_autograd_meta(std::move(plain));
}

void adopt(
    const at::Tensor& parameter,
    const ManagedStorage& storage,
    std::int64_t offset,
    c10::ScalarType dtype) {
  // In inference mode, new tensors would be inference tensors, which can never be trained.
  const c10::InferenceMode off(false);
  auto impl = keyed(
      parameter.options().dtype(dtype).requires_grad(false), storage, offset);
  impl->set_sizes_contiguous(parameter.sizes());
  drop_view_base(parameter);
  parameter.set_data(at::Tensor(std::move(impl)));
}

void adopt_in_place(
    const at::Tensor& parameter, const ManagedStorage& storage) {
  const c10::InferenceMode off(false);
  auto impl = keyed(
      parameter.options().requires_grad(false), storage,
      parameter.storage_offset());
  impl->set_sizes_and_strides(parameter.sizes(), parameter.strides());
  parameter.set_data(at::Tensor(std::move(impl)));
}

void release(const at::Tensor& parameter, const at::Tensor& plain) {
  const c10::InferenceMode off(false);
  // The handle may be a static object, which ends when the fallback is gone.
  const auto nobody_is_told = exclude_param_key();
  parameter.set_data(plain);
}

c10::impl::ExcludeDispatchKeyGuard exclude_param_key() {
  return c10::impl::ExcludeDispatchKeyGuard(kParamKey);
}

bool is_adopted(const at::Tensor& parameter, const ManagedStorage& storage) {
  return parameter.key_set().has(kParamKey) && parameter.has_storage() &&
      parameter.storage().unsafeGetStorageImpl() ==
      storage.storage().unsafeGetStorageImpl();
}

}  // namespace sherd::autograd

namespace sherd {

struct TouchScope::State {
  at::Tensor tensor;
  autograd::ParameterUses uses;
  std::optional<autograd::ParameterUseScope> scope;
};

TouchScope::TouchScope(const at::Tensor& tensor)
    : state_(std::make_unique<State>()) {
  state_->tensor = tensor;
  autograd::add_use(state_->uses, state_->tensor, /*written=*/false);
  state_->scope.emplace(state_->uses, "sherd::touch");
}

TouchScope::~TouchScope() = default;

}  // namespace sherd
