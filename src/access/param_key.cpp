// SPDX-License-Identifier: Apache-2.0
#include "access/param_key.h"

#include <algorithm>
#include <utility>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>
#include <sherd/access/touch.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include "access/activation_cast.h"
#include "access/operator_class.h"
#include "base/check.h"

namespace sherd::access {
namespace {

// Above autograd, so that one operator is one announcement, and unused by
// LibTorch itself outside its own tests.
constexpr auto kParamKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
constexpr c10::DispatchKeySet kBelow(
    c10::DispatchKeySet::FULL_AFTER, kParamKey);

using Touches = c10::SmallVector<Touch, 4>;

void add_touch(Touches& touches, const at::Tensor& tensor, bool written) {
  // The key test comes first: nearly every argument fails it.
  if (!tensor.defined() || !tensor.key_set().has(kParamKey)) {
    return;
  }
  if (const auto* tag = tag_of(tensor)) {
    touches.push_back({tag, tensor.unsafeGetTensorImpl(), written});
  }
}

void add_touches(Touches& touches, const c10::IValue& value, bool written) {
  if (value.isTensor()) {
    add_touch(touches, value.toTensor(), written);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) {
        add_touch(touches, element.toTensor(), written);
      } else if (!element.isNone()) {
        return;  // A list of numbers.
      }
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      if (entry.value().isTensor()) {
        add_touch(touches, entry.value().toTensor(), written);
      }
    }
  }
}

Touches touches_of(
    const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  Touches touches;
  const auto& arguments = schema.arguments();
  const auto first = stack.size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    add_touches(
        touches, stack[first + i], alias != nullptr && alias->isWrite());
  }
  return touches;
}

// Enters the listeners of all touches, one after the other, and leaves those
// entered when it goes out of scope.
class EnterScope {
 public:
  EnterScope(Touches& touches, const char* name) : touches_(touches) {
    // Almost always one listener; a teacher and a student may meet.
    std::stable_sort(
        touches.begin(), touches.end(), [](const Touch& a, const Touch& b) {
          return listener_of(a) < listener_of(b);
        });
    try {
      while (entered_ < touches_.size()) {
        const auto group = next_group();
        auto* listener = listener_of(group.front());
        SHERD_CHECK_AS(
            kFailedPrecondition, listener != nullptr, "[access] ", name,
            " uses a parameter whose sharding handle was "
            "destroyed; keep the handle as long as the model is used");
        listener->enter(group, name);
        entered_ += group.size();
      }
    } catch (...) {
      leave();
      throw;
    }
  }
  ~EnterScope() { leave(); }
  EnterScope(const EnterScope&) = delete;
  EnterScope& operator=(const EnterScope&) = delete;

 private:
  static Listener* listener_of(const Touch& touch) {
    return touch.tag->listener.load(std::memory_order_acquire);
  }

  std::span<const Touch> next_group() const {
    const auto* begin = touches_.data() + entered_;
    const auto* end = touches_.data() + touches_.size();
    const auto* last = std::find_if(begin, end, [&](const Touch& touch) {
      return listener_of(touch) != listener_of(*begin);
    });
    return {begin, last};
  }

  void leave() noexcept {
    std::size_t left = 0;
    while (left < entered_) {
      auto* listener = listener_of(touches_[left]);
      auto end = left;
      while (end < entered_ && listener_of(touches_[end]) == listener) {
        ++end;
      }
      if (listener != nullptr) {
        listener->leave({touches_.data() + left, end - left});
      }
      left = end;
    }
    entered_ = 0;
  }

  Touches& touches_;
  std::size_t entered_ = 0;
};

bool is_builtin(const c10::OperatorHandle& op) {
  return op.operator_name().name.starts_with("aten::");
}

void cast_for(
    const Touches& touches,
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack) {
  for (const auto& touch : touches) {
    if (touch.tag->activations == Activations::kCast) {
      const auto dtype = c10::typeMetaToScalarType(touch.tensor->dtype());
      cast_activations(op, dtype, stack);
      return;
    }
  }
}

void announce(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  if (reads_no_bytes(op)) {
    const c10::impl::ExcludeDispatchKeyGuard below(kParamKey);
    op.redispatchBoxed(keys & kBelow, stack);
    return;
  }
  auto touches = touches_of(op.schema(), *stack);
  const EnterScope scope(touches, op.operator_name().name.c_str());
  cast_for(touches, op, *stack);
  if (is_builtin(op)) {
    // What the operator is made of touches the same tensors: already entered.
    const c10::impl::ExcludeDispatchKeyGuard below(kParamKey);
    op.redispatchBoxed(keys & kBelow, stack);
  } else {
    // A custom operator may use further weights inside; those must announce.
    op.redispatchBoxed(keys & kBelow, stack);
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
  // Without weak references LibTorch destroys it at once, with them it releases
  // first.
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

// Older LibTorch has no such fields.
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

void forget_placeholder(const at::Tensor& placeholder) {
  placeholder_of(placeholder)->forget();
}

void forget_base(const at::Tensor& parameter) {
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
  // Inside it, new tensors would be inference tensors and never train.
  const c10::InferenceMode off(false);
  auto impl = keyed(
      parameter.options().dtype(dtype).requires_grad(false), storage, offset);
  impl->set_sizes_contiguous(parameter.sizes());
  forget_base(parameter);
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
  parameter.set_data(plain);
}

SilentScope::SilentScope() : no_key_(kParamKey) {}

bool is_adopted(const at::Tensor& parameter, const ManagedStorage& storage) {
  return parameter.key_set().has(kParamKey) && parameter.has_storage() &&
      parameter.storage().unsafeGetStorageImpl() ==
      storage.storage().unsafeGetStorageImpl();
}

}  // namespace sherd::access

namespace sherd {

struct TouchScope::State {
  at::Tensor tensor;
  access::Touches touches;
  std::optional<access::EnterScope> scope;
};

TouchScope::TouchScope(const at::Tensor& tensor)
    : state_(std::make_unique<State>()) {
  state_->tensor = tensor;
  access::add_touch(state_->touches, state_->tensor, /*written=*/false);
  state_->scope.emplace(state_->touches, "sherd::touch");
}

TouchScope::~TouchScope() = default;

}  // namespace sherd
