// SPDX-License-Identifier: Apache-2.0
//
// The list of operators that read no bytes of their arguments. The parameter key does not announce
// them, because that would gather a unit for nothing. An operator missing from the list only costs
// traffic; one that is on it by mistake would read an empty storage. Thread rule: any thread.
#pragma once

#include <span>
#include <string_view>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace sherd::autograd {

// True for pure views (t, narrow, detach, ...) and for operators that only look at shape and dtype
// (zeros_like, new_empty, ...); false for those that may copy, such as reshape, contiguous or to.
bool uses_metadata_only(const c10::OperatorHandle& op);

// True for a `to` that changes nothing, as module.to("cpu") calls it for each parameter and gradient
// of a module on the CPU. False where the storage shows other values instead.
bool returns_its_argument(
    const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// The names on the list, without "aten::". A test compares them with what LibTorch has.
std::span<const std::string_view> metadata_operators();

}  // namespace sherd::autograd
