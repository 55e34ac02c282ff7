// SPDX-License-Identifier: Apache-2.0
//
// Mixed precision at the level of operators: activations that meet a parameter of another dtype
// are cast to it. Matrix products, norms and recurrent layers refuse mixed arguments, while
// element-wise operators promote them and need nothing. Thread rule: any thread.
// The mechanism: docs/design/autograd.md.
#pragma once

#include <span>
#include <string_view>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace sherd::autograd {

// When `op` is on the list, replaces its floating-point arguments on the stack, lists included, by
// casts to `dtype`, except those in managed storages whose parameters are not cast; autograd records
// the casts. Operators that write an argument are not on the list. REQUIRES: dispatch has not reached autograd.
void cast_activations(
    const c10::OperatorHandle& op,
    c10::ScalarType dtype,
    torch::jit::Stack& stack);

// When `op` is on the list, or an embedding, replaces the floating-point tensors that it has left on
// the stack, lists included, by casts to `dtype`; autograd records the casts.
void cast_results(
    const c10::OperatorHandle& op,
    c10::ScalarType dtype,
    torch::jit::Stack& stack);

// Whether `op` uses parameters in their own dtype: it writes running statistics beside them.
bool keeps_parameters(const c10::OperatorHandle& op);
// Whether `op` is an embedding.
bool returns_rows_of_parameters(const c10::OperatorHandle& op);

// The names on the list, without "aten::". A test compares them with what LibTorch has.
std::span<const std::string_view> activation_cast_operators();

}  // namespace sherd::autograd
