// SPDX-License-Identifier: Apache-2.0
//
// The parameter key is a dispatch key by which a parameter announces its own use: every operator on
// a tensor that has it, or on a view of one, passes through one boxed fallback, in forward and in
// backward. The fallback calls the storage's ParameterUseListener and redispatches below the key.
// Operators on other tensors are not affected. Modules cannot be intercepted instead, because
// LibTorch's have no forward hooks.
//
// The fallback is registered once per process and has no state. Thread rule: any thread. Mechanism
// and measurements: docs/design/autograd.md.
#pragma once

#include <functional>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include "autograd/managed_storage.h"

namespace sherd::autograd {

// Registers the fallback; further calls do nothing. REQUIRED before any tensor gets the key,
// because an operator on a tensor with the key but without a fallback fails.
void install_param_key();

// Turns a leaf that autograd takes for a view, such as register_parameter("w", x.t()) makes, into a
// plain leaf; hooks, the gradient and a cached accumulator stay. Why: docs/design/autograd.md.
void drop_view_base(const at::Tensor& parameter);

// Moves `parameter` into `storage`, at an offset of `offset` elements, and gives it the key. The
// tensor object, its hooks and its place in modules stay; a cached gradient accumulator stays if
// the dtype does. The old bytes are dropped. REQUIRES: `storage` holds `offset + numel` elements of
// the dtype.
void adopt(
    const at::Tensor& parameter,
    const ManagedStorage& storage,
    std::int64_t offset,
    c10::ScalarType dtype);

// Gives the key to a parameter that keeps its place and strides. REQUIRES: `storage` is filled with
// the bytes of the parameter's own storage.
void adopt_in_place(const at::Tensor& parameter, const ManagedStorage& storage);

// Returns a tensor with the sizes and dtype of `like` that has the key and lies at the beginning of
// `storage`. When the last reference to it is dropped (views do not count), `dropped` is called,
// once; it must not throw. REQUIRES: `like` is not an inference tensor.
at::Tensor make_placeholder(
    const at::Tensor& like,
    const ManagedStorage& storage,
    std::function<void()> dropped);

bool is_placeholder(const at::Tensor& tensor);

// Prevents the call of `dropped`. REQUIRES: is_placeholder().
void disarm_placeholder(const at::Tensor& placeholder);

// Gives a parameter back to plain LibTorch: it becomes `plain`, without the key; the tensor object
// stays.
void release(const at::Tensor& parameter, const at::Tensor& plain);

// Whether `parameter` still lies in `storage` and has the key. module->to(), set_data() and the
// like silently replace both.
bool is_adopted(const at::Tensor& parameter, const ManagedStorage& storage);

// While the result lives, operators on this thread announce nothing.
[[nodiscard]] c10::impl::ExcludeDispatchKeyGuard exclude_param_key();

}  // namespace sherd::autograd
