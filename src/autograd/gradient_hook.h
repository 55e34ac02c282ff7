// SPDX-License-Identifier: Apache-2.0
//
// Hooks of one parameter in backward: one that takes the gradient out once autograd has accumulated
// it, and one that is called before autograd accumulates. LibTorch keeps one post-accumulation hook
// per tensor; a user's that is already there runs first and stays. Thread rule: hooks are set and
// removed when no backward runs. They are called from any thread that runs a backward, concurrently
// for one parameter when several backwards run.
#pragma once

#include <functional>
#include <memory>
#include <ATen/core/Tensor.h>

namespace sherd::autograd {

// Receives the gradient that was taken out of the parameter, or an undefined tensor when autograd
// produced none. Nobody else holds the tensor or its bytes, but gradients of parameters that were
// concatenated are separate parts of one storage.
using GradientCallback = std::function<void(at::Tensor gradient)>;

// REQUIRES: `parameter` is a leaf.
void set_gradient_hook(const at::Tensor& parameter, GradientCallback callback);

bool has_gradient_hook(const at::Tensor& parameter);

// Whether the leaf has a hook that autograd would call after it has accumulated its gradient.
bool has_post_accumulation_hook(const at::Tensor& leaf);
// Calls it, with gradients off, for a gradient that was not accumulated by autograd.
// REQUIRES: it has one.
void call_post_accumulation_hook(const at::Tensor& leaf);

// Restores the hook that was there before set_gradient_hook().
void remove_gradient_hook(const at::Tensor& parameter);

// Calls `call` in each backward before autograd adds to the parameter's `.grad()`, on the same
// thread, for as long as the returned object lives. Unlike a hook of the tensor it stays when a
// user sets one. REQUIRES: `parameter` is a leaf that needs gradients.
std::shared_ptr<void> add_pre_accumulation_hook(
    const at::Tensor& parameter, std::function<void()> call);

}  // namespace sherd::autograd
