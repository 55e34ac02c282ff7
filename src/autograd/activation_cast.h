// SPDX-License-Identifier: Apache-2.0
//
// Casts of activations that meet parameters of another dtype, so that a module
// written for fp32 runs with parameters in bf16: matrix products, norms and
// recurrent layers refuse mixed arguments, while element-wise operators promote
// them and need nothing. Thread rule: any thread.
// Where they run and why: docs/design/access.md.
#pragma once

#include <span>
#include <string_view>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace sherd::autograd {

// Replaces the operator's floating-point arguments on the stack, lists
// included, that lie in no managed storage by casts to `dtype`, when `op` is
// one of the operators above; autograd records the casts. Integers, booleans
// and complex numbers stay, as do arguments of operators that write any.
// REQUIRES: above autograd.
void cast_activations(
    const c10::OperatorHandle& op,
    c10::ScalarType dtype,
    torch::jit::Stack& stack);

// The list itself, names without "aten::", to compare with a LibTorch.
std::span<const std::string_view> activation_cast_operators();

}  // namespace sherd::autograd
