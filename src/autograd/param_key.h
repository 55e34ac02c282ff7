// SPDX-License-Identifier: Apache-2.0
//
// A parameter announces its own use. A tensor that carries the parameter key
// makes every operator on it, or on a view of it, in forward and in backward,
// pass through one boxed fallback, which tells the storages' Listeners and
// then redispatches below the key. Operators on other tensors never notice.
//
// The fallback is the one piece of process-wide state in sherd, and it is
// stateless. It lives in this file alone. Thread rule: any thread.
// Mechanism and measurements: docs/design/access.md.
#pragma once

#include <functional>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include "autograd/managed_storage.h"

namespace sherd::autograd {

// Registers the fallback; further calls do nothing. Must come before the first
// with_param_key(): an operator on a keyed tensor without a fallback fails.
void install_param_key();

// Makes a leaf that is a view to autograd, as register_parameter("w", x.t()) has
// it, one that is none. A view keeps the bytes of what it views; and a view of it
// loses its history when the leaf's version moves before the view is used, since
// autograd then makes that history anew from `x`, which trains nothing. Hooks, the
// gradient and a cached accumulator stay.
void drop_view_base(const at::Tensor& parameter);

// Makes `parameter` a view of `flat`, at `offset` elements, that carries the
// key. The tensor object, its hooks and its place in modules stay; a cached
// gradient accumulator stays when the dtype does. Its old bytes are dropped.
// REQUIRES: `storage` holds `offset + numel` elements of the dtype.
void adopt(
    const at::Tensor& parameter,
    const ManagedStorage& storage,
    std::int64_t offset,
    c10::ScalarType dtype);

// The same for a parameter that stays where it is, with the strides it has.
// REQUIRES: `storage` is filled with the bytes of the parameter's own storage.
void adopt_in_place(const at::Tensor& parameter, const ManagedStorage& storage);

// A tensor of the sizes and dtype of `like` that carries the key and lies at the
// beginning of `storage`. `dropped` is called once, by whoever gives up the last
// reference to it, which views of it are not; it must not throw. REQUIRES: `like`
// is no inference tensor.
at::Tensor make_placeholder(
    const at::Tensor& like,
    const ManagedStorage& storage,
    std::function<void()> dropped);

bool is_placeholder(const at::Tensor& tensor);

// From now on `dropped` is not called. REQUIRES: it is a placeholder.
void disarm_placeholder(const at::Tensor& placeholder);

// Gives a tensor back to plain LibTorch: `parameter` becomes `plain`, without
// key, keeping the tensor object.
void release(const at::Tensor& parameter, const at::Tensor& plain);

// True while `parameter` still lies in `storage` and carries the key.
// module->to(), set_data() and the like replace both silently.
bool is_adopted(const at::Tensor& parameter, const ManagedStorage& storage);

// While it lives, this thread's operators announce nothing.
class ExcludeParamKeyScope {
 public:
  ExcludeParamKeyScope();

 private:
  c10::impl::ExcludeDispatchKeyGuard no_key_;
};

}  // namespace sherd::autograd
