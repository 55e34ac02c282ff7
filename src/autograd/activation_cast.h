// SPDX-License-Identifier: Apache-2.0
//
// Mixed precision at the level of operators: activations that meet a parameter of another dtype are
// cast to it. Matrix products, norms and recurrent layers refuse mixed arguments, whereas
// element-wise operators promote them and need nothing. Thread rule: any thread. The mechanism:
// docs/design/autograd.md.
#pragma once

#include <span>
#include <string_view>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace sherd::autograd {

// If `op` is on the list, replaces its floating-point arguments on the stack, including those in
// lists, by casts to `dtype`, except arguments in managed storages whose parameters are not cast.
// Autograd records the casts. Operators that write an argument are not on the list. REQUIRES:
// dispatch has not reached autograd.
void cast_activations(
    const c10::OperatorHandle& op,
    c10::ScalarType dtype,
    torch::jit::Stack& stack);

// If `op` is on the list or is an embedding, replaces the floating-point tensors that it has left
// on the stack, including those in lists, by casts to `dtype`. Autograd records the casts.
void cast_results(
    const c10::OperatorHandle& op,
    c10::ScalarType dtype,
    torch::jit::Stack& stack);

// Whether `op` must use parameters in their own dtype, because it writes running statistics, too.
bool keeps_parameters(const c10::OperatorHandle& op);
// Whether `op` is an embedding.
bool returns_rows_of_parameters(const c10::OperatorHandle& op);

// The names on the list, without "aten::". A test compares them with what LibTorch has.
std::span<const std::string_view> activation_cast_operators();

}  // namespace sherd::autograd
