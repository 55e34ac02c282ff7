// SPDX-License-Identifier: Apache-2.0
//
// The parameter key is a dispatch key by which a parameter announces its own use: every operator on
// a tensor that carries it, or on a view of one, passes through one boxed fallback, in forward and
// in backward. The fallback calls the storage's ParameterUseListener and redispatches below the
// key. Operators on other tensors are not affected. Modules cannot be intercepted instead, since
// LibTorch's have no forward hooks.
//
// The fallback is registered once per process and has no state. Thread rule: any thread.
// Mechanism and measurements: docs/design/autograd.md.
#pragma once

#include <functional>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include "autograd/managed_storage.h"

namespace sherd::autograd {

// Registers the fallback; further calls do nothing. REQUIRED before any tensor gets the key,
// because an operator on a keyed tensor without a fallback fails.
void install_param_key();

// Turns a leaf that autograd takes for a view, as register_parameter("w", x.t()) makes one, into a
// plain leaf; hooks, the gradient and a cached accumulator stay. Such a view keeps the bytes of
// `x`, and views of it lose their history when the leaf's version moves before they are used
// (docs/design/autograd.md).
void drop_view_base(const at::Tensor& parameter);

// Moves `parameter` into `storage`, at `offset` elements, and gives it the key. The tensor object,
// its hooks and its place in modules stay; a cached gradient accumulator stays when the dtype does.
// The old bytes are dropped. REQUIRES: `storage` holds `offset + numel` elements of the dtype.
void adopt(
    const at::Tensor& parameter,
    const ManagedStorage& storage,
    std::int64_t offset,
    c10::ScalarType dtype);

// Gives the key to a parameter that keeps its place and strides.
// REQUIRES: `storage` is filled with the bytes of the parameter's own storage.
void adopt_in_place(const at::Tensor& parameter, const ManagedStorage& storage);

// Returns a tensor of the sizes and dtype of `like` that carries the key and lies at the beginning
// of `storage`. Whoever gives up the last reference to it (views are none) calls `dropped`, once;
// it must not throw. REQUIRES: `like` is no inference tensor.
at::Tensor make_placeholder(
    const at::Tensor& like,
    const ManagedStorage& storage,
    std::function<void()> dropped);

bool is_placeholder(const at::Tensor& tensor);

// Prevents the call of `dropped`. REQUIRES: is_placeholder().
void disarm_placeholder(const at::Tensor& placeholder);

// Gives a parameter back to plain LibTorch: it becomes `plain`, without key; the tensor object
// stays.
void release(const at::Tensor& parameter, const at::Tensor& plain);

// Whether `parameter` still lies in `storage` and carries the key. module->to(), set_data() and the
// like replace both silently.
bool is_adopted(const at::Tensor& parameter, const ManagedStorage& storage);

// While it lives, operators of this thread announce nothing.
class ExcludeParamKeyScope {
 public:
  ExcludeParamKeyScope();

 private:
  c10::impl::ExcludeDispatchKeyGuard no_key_;
};

}  // namespace sherd::autograd
