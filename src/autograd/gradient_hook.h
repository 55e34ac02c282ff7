// SPDX-License-Identifier: Apache-2.0
//
// Takes a parameter's gradient the moment autograd has accumulated it, and tells
// of the moment before. A hook
// that is already there (LibTorch keeps one per tensor) runs first and stays.
// Thread rule: set and removed when no backward runs; called from whatever
// thread runs the backward, for one parameter also concurrently when several
// backwards do.
#pragma once

#include <functional>
#include <memory>
#include <ATen/core/Tensor.h>

namespace sherd::autograd {

// Receives the gradient, taken out of the parameter: nobody else holds this
// tensor, and nobody else its bytes, though the gradients of parameters that
// were concatenated are separate parts of one storage. Or an undefined tensor
// when autograd produced none.
using GradientCallback = std::function<void(at::Tensor gradient)>;

// REQUIRES: `parameter` is a leaf.
void set_gradient_hook(const at::Tensor& parameter, GradientCallback callback);

bool has_gradient_hook(const at::Tensor& parameter);

// Puts back what was there before set_gradient_hook().
void remove_gradient_hook(const at::Tensor& parameter);

// Calls `call` in each backward before autograd adds to the parameter's
// `.grad()`, on the thread that will, for as long as what it returns lives.
// Unlike a hook of the tensor it stays when a user sets one.
// REQUIRES: `parameter` is a leaf that needs gradients.
std::shared_ptr<void> add_pre_accumulation_hook(
    const at::Tensor& parameter, std::function<void()> call);

}  // namespace sherd::autograd
