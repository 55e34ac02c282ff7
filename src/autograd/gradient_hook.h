// SPDX-License-Identifier: Apache-2.0
//
// Hooks of one parameter in backward: one takes the gradient out after autograd has accumulated it,
// and one is called before autograd accumulates. LibTorch keeps one post-accumulation hook per
// tensor; a user's hook that is already there runs first and stays. One that a user sets later takes
// the place of ours, so engines ask has_gradient_hook() in each step and set ours again, before
// which the user's then runs. Thread rule: hooks are set and removed while no backward uses the
// parameter. They are called from any thread that runs a backward, and concurrently for one
// parameter if several backwards run.
#pragma once

#include <functional>
#include <memory>
#include <ATen/core/Tensor.h>

namespace sherd::autograd {

// Receives the gradient that was taken out of the parameter, or an undefined tensor if autograd
// produced none. Nothing else holds the tensor or its bytes, but gradients of parameters that were
// concatenated are separate parts of one storage.
using GradientCallback = std::function<void(at::Tensor gradient)>;

// REQUIRES: `parameter` is a leaf.
void set_gradient_hook(const at::Tensor& parameter, GradientCallback callback);

// Puts a gradient that the callback received back into `.grad()`, where another backward may have
// added by now.
void return_gradient(const at::Tensor& parameter, at::Tensor gradient);

bool has_gradient_hook(const at::Tensor& parameter);

// Whether the leaf has a hook that autograd would call after it has accumulated its gradient.
bool has_post_accumulation_hook(const at::Tensor& leaf);
// Calls that hook, with gradients off, for a gradient that autograd did not accumulate. REQUIRES:
// the leaf has one.
void call_post_accumulation_hook(const at::Tensor& leaf);

// Restores the hook that was there before set_gradient_hook().
void remove_gradient_hook(const at::Tensor& parameter);

// Receives the gradient that autograd is about to add, perhaps undefined, and may replace it.
using PreAccumulationCallback = std::function<void(at::Tensor& gradient)>;

// Makes each backward call `call` before autograd adds to the parameter's `.grad()`, on the same
// thread, for as long as the returned object lives; also one whose gradient is undefined, since
// GradientCallback gets what is in `.grad()` then. Unlike a hook of the tensor it stays when a user
// sets a hook. REQUIRES: `parameter` is a leaf that may require gradients, now or later.
std::shared_ptr<void> add_pre_accumulation_hook(
    const at::Tensor& parameter, PreAccumulationCallback call);

// Moves the hooks that this thread has added to the nodes that their parameters have now:
// torch::load() gives a parameter another one. Called before each outermost backward of a C++
// program.
void follow_parameters();

}  // namespace sherd::autograd
