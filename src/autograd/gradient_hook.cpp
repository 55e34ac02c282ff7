// SPDX-License-Identifier: Apache-2.0
#include "autograd/gradient_hook.h"

#include <memory>
#include <mutex>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include "base/interrupt.h"

namespace sherd::autograd {
namespace {

using torch::autograd::PostAccumulateGradHook;
namespace impl = torch::autograd::impl;

struct NodeAccess : torch::autograd::Node {
  static std::mutex& mutex_of(torch::autograd::Node& node) {
    return node.*(&NodeAccess::mutex_);
  }
};

// LibTorch calls hooks when it has unlocked what it locks to accumulate, so another backward may be
// adding to the same gradient. What both have added goes to whoever comes first.
template <typename Action>
auto while_nobody_accumulates(
    const at::Tensor& parameter, const Action& action) {
  const auto accumulator = impl::try_get_grad_accumulator(parameter);
  std::unique_lock<std::mutex> lock;
  if (accumulator) {
    lock = std::unique_lock(NodeAccess::mutex_of(*accumulator));
  }
  return action(parameter.mutable_grad());
}

class GradientHook final : public PostAccumulateGradHook {
 public:
  GradientHook(
      GradientCallback callback, std::unique_ptr<PostAccumulateGradHook> before)
      : callback_(std::move(callback)), before_(std::move(before)) {}

  void operator()(const at::Tensor& parameter) override {
    if (before_) {
      (*before_)(parameter);
    }
    auto gradient = while_nobody_accumulates(parameter, [](at::Tensor& grad) {
      return std::exchange(grad, at::Tensor());
    });
    try {
      check_may_use_parameters("backward");
      callback_(std::move(gradient));
    } catch (const Error& error) {
      rethrow_translated(error);
    }
  }

  std::unique_ptr<PostAccumulateGradHook> take_before() {
    return std::move(before_);
  }

 private:
  const GradientCallback callback_;
  std::unique_ptr<PostAccumulateGradHook> before_;
};

// The parameter's hook, or null. A tensor that was never trainable has no place for a hook yet, and
// LibTorch would fail an assertion there.
PostAccumulateGradHook* hook_of(const at::Tensor& parameter) {
  return impl::get_autograd_meta(parameter) == nullptr
      ? nullptr
      : impl::post_acc_grad_hooks(parameter).get();
}

class PreAccumulationHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit PreAccumulationHook(PreAccumulationCallback call)
      : call_(std::move(call)) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    auto gradient = gradients.at(0);
    try {
      call_(gradient);
    } catch (const Error& error) {
      rethrow_translated(error);
    }
    return {std::move(gradient)};
  }

 private:
  const PreAccumulationCallback call_;
};

// A frozen leaf gets its node here, too, and keeps it when it is thawed.
auto accumulator_of(const at::Tensor& leaf) {
  const bool trains = leaf.requires_grad();
  leaf.set_requires_grad(true);
  auto node = impl::grad_accumulator(leaf);
  leaf.set_requires_grad(trains);
  return node;
}

// A hook of the node that accumulates. It keeps the node alive, which LibTorch drops between two
// backwards.
class PreAccumulationRegistration {
 public:
  PreAccumulationRegistration(
      const at::Tensor& parameter, PreAccumulationCallback call)
      : accumulator_(accumulator_of(parameter)) {
    auto hook = std::make_unique<PreAccumulationHook>(std::move(call));
    hook_ = hook.get();
    accumulator_->add_pre_hook(std::move(hook));
  }
  ~PreAccumulationRegistration() {
    std::erase_if(accumulator_->pre_hooks(), [this](const auto& hook) {
      return hook.get() == hook_;
    });
  }
  PreAccumulationRegistration(const PreAccumulationRegistration&) = delete;
  PreAccumulationRegistration& operator=(const PreAccumulationRegistration&) =
      delete;

 private:
  // An intrusive_ptr or, in older versions of LibTorch, a shared_ptr.
  const decltype(impl::grad_accumulator(at::Tensor())) accumulator_;
  const torch::autograd::FunctionPreHook* hook_;
};

}  // namespace

std::shared_ptr<void> add_pre_accumulation_hook(
    const at::Tensor& parameter, PreAccumulationCallback call) {
  return std::make_shared<PreAccumulationRegistration>(
      parameter, std::move(call));
}

bool has_post_accumulation_hook(const at::Tensor& leaf) {
  return hook_of(leaf) != nullptr;
}

void call_post_accumulation_hook(const at::Tensor& leaf) {
  const at::NoGradGuard no_grad;
  (*hook_of(leaf))(leaf);
}

void return_gradient(const at::Tensor& parameter, at::Tensor gradient) {
  if (!gradient.defined()) {
    return;
  }
  const at::NoGradGuard no_grad;
  while_nobody_accumulates(parameter, [&](at::Tensor& grad) {
    grad = grad.defined() ? gradient.add(grad) : std::move(gradient);
  });
}

void set_gradient_hook(const at::Tensor& parameter, GradientCallback callback) {
  std::unique_ptr<PostAccumulateGradHook> before;
  if (hook_of(parameter) != nullptr) {
    before = std::move(impl::post_acc_grad_hooks(parameter));
  }
  impl::set_post_acc_grad_hooks(
      parameter,
      std::make_unique<GradientHook>(std::move(callback), std::move(before)));
}

bool has_gradient_hook(const at::Tensor& parameter) {
  return dynamic_cast<GradientHook*>(hook_of(parameter)) != nullptr;
}

void remove_gradient_hook(const at::Tensor& parameter) {
  if (auto* ours = dynamic_cast<GradientHook*>(hook_of(parameter))) {
    auto before = ours->take_before();
    impl::set_post_acc_grad_hooks(parameter, std::move(before));
  }
}

}  // namespace sherd::autograd
