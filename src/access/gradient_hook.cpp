// SPDX-License-Identifier: Apache-2.0
#include "access/gradient_hook.h"

#include <memory>
#include <utility>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace sherd::access {
namespace {

using torch::autograd::PostAccumulateGradHook;
namespace impl = torch::autograd::impl;

class TakeGradient final : public PostAccumulateGradHook {
 public:
  TakeGradient(
      GradientTaker taker, std::unique_ptr<PostAccumulateGradHook> before)
      : taker_(std::move(taker)), before_(std::move(before)) {}

  void operator()(const at::Tensor& parameter) override {
    if (before_) {
      (*before_)(parameter);
    }
    auto gradient = std::move(parameter.mutable_grad());
    parameter.mutable_grad().reset();
    taker_(std::move(gradient));
  }

  std::unique_ptr<PostAccumulateGradHook> take_before() {
    return std::move(before_);
  }

 private:
  const GradientTaker taker_;
  std::unique_ptr<PostAccumulateGradHook> before_;
};

// The parameter's hook, or null. A tensor that was never trainable has no
// place for one yet, and LibTorch asserts there.
PostAccumulateGradHook* hook_of(const at::Tensor& parameter) {
  return impl::get_autograd_meta(parameter) == nullptr
      ? nullptr
      : impl::post_acc_grad_hooks(parameter).get();
}

}  // namespace

void set_gradient_hook(const at::Tensor& parameter, GradientTaker taker) {
  std::unique_ptr<PostAccumulateGradHook> before;
  if (hook_of(parameter) != nullptr) {
    before = std::move(impl::post_acc_grad_hooks(parameter));
  }
  impl::set_post_acc_grad_hooks(
      parameter,
      std::make_unique<TakeGradient>(std::move(taker), std::move(before)));
}

bool has_gradient_hook(const at::Tensor& parameter) {
  // A tensor that never needed gradients has no place for hooks.
  return impl::get_autograd_meta(parameter) != nullptr &&
      dynamic_cast<TakeGradient*>(
          impl::post_acc_grad_hooks(parameter).get()) != nullptr;
}

void remove_gradient_hook(const at::Tensor& parameter) {
  if (auto* ours = dynamic_cast<TakeGradient*>(hook_of(parameter))) {
    auto before = ours->take_before();
    impl::set_post_acc_grad_hooks(parameter, std::move(before));
  }
}

}  // namespace sherd::access
