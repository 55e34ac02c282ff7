// SPDX-License-Identifier: Apache-2.0
#include "autograd/gradient_hook.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include "autograd/backward.h"
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

class PreAccumulationRegistrations;

// A hook of the node that accumulates. It keeps the node alive, which LibTorch drops between two
// backwards.
class PreAccumulationRegistration {
 public:
  PreAccumulationRegistration(
      const at::Tensor& parameter, PreAccumulationCallback call);
  ~PreAccumulationRegistration();
  PreAccumulationRegistration(const PreAccumulationRegistration&) = delete;
  PreAccumulationRegistration& operator=(const PreAccumulationRegistration&) =
      delete;

  // Moves the hook to the node that the parameter has now, if this thread has registered it: others
  // may be giving theirs another node.
  void follow_parameter();

 private:
  std::unique_ptr<torch::autograd::FunctionPreHook> take_hook();

  const std::shared_ptr<PreAccumulationRegistrations> registrations_;
  const std::thread::id thread_ = std::this_thread::get_id();
  const at::Tensor parameter_;
  // An intrusive_ptr or, in older versions of LibTorch, a shared_ptr.
  decltype(impl::grad_accumulator(at::Tensor())) accumulator_;
  const torch::autograd::FunctionPreHook* hook_;
};

// All that live.
class PreAccumulationRegistrations {
 public:
  void add(PreAccumulationRegistration* one) {
    const std::lock_guard lock(mu_);
    all_.insert(one);
  }
  void remove(PreAccumulationRegistration* one) {
    const std::lock_guard lock(mu_);
    all_.erase(one);
  }
  void follow_parameters() const {
    const std::lock_guard lock(mu_);
    for (auto* one : all_) {
      one->follow_parameter();
    }
  }

 private:
  mutable std::mutex mu_;
  std::set<PreAccumulationRegistration*> all_;  // Guarded by mu_.
};

// Parameters may outlive static objects.
std::shared_ptr<PreAccumulationRegistrations> registrations() {
  static const auto all = std::make_shared<PreAccumulationRegistrations>();
  return all;
}

PreAccumulationRegistration::PreAccumulationRegistration(
    const at::Tensor& parameter, PreAccumulationCallback call)
    : registrations_(registrations()),
      parameter_(parameter),
      accumulator_(accumulator_of(parameter)) {
  auto hook = std::make_unique<PreAccumulationHook>(std::move(call));
  hook_ = hook.get();
  accumulator_->add_pre_hook(std::move(hook));
  registrations_->add(this);
}

PreAccumulationRegistration::~PreAccumulationRegistration() {
  registrations_->remove(this);
  (void)take_hook();
}

void PreAccumulationRegistration::follow_parameter() {
  if (std::this_thread::get_id() != thread_) {
    return;
  }
  auto now = impl::try_get_grad_accumulator(parameter_);
  if (!now || now == accumulator_) {
    return;
  }
  if (auto hook = take_hook()) {
    now->add_pre_hook(std::move(hook));
  }
  accumulator_ = std::move(now);
}

std::unique_ptr<torch::autograd::FunctionPreHook>
PreAccumulationRegistration::take_hook() {
  auto& hooks = accumulator_->pre_hooks();
  const auto ours = std::ranges::find(
      hooks, hook_, [](const auto& hook) { return hook.get(); });
  if (ours == hooks.end()) {
    return nullptr;
  }
  auto hook = std::move(*ours);
  hooks.erase(ours);
  return hook;
}

}  // namespace

std::shared_ptr<void> add_pre_accumulation_hook(
    const at::Tensor& parameter, PreAccumulationCallback call) {
  install_backward_engine();  // In C++ programs, it calls follow_parameters().
  return std::make_shared<PreAccumulationRegistration>(
      parameter, std::move(call));
}

void follow_parameters() { registrations()->follow_parameters(); }

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
