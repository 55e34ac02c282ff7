// SPDX-License-Identifier: Apache-2.0
//
// Which operators use no bytes of their arguments, so that announcing them
// would gather a unit for nothing. An operator missing from the list costs
// traffic, never correctness; one wrongly on it would read an empty storage.
// Thread rule: any thread.
#pragma once

#include <span>
#include <string_view>
#include <ATen/core/dispatch/Dispatcher.h>

namespace sherd::autograd {

// True for pure views (t, narrow, detach, ...) and operators that look only at
// shape and dtype (zeros_like, new_empty, ...). Not for operators that may
// copy, such as reshape, contiguous or to.
bool uses_metadata_only(const c10::OperatorHandle& op);

// The list itself, names without "aten::", to compare with a LibTorch.
std::span<const std::string_view> metadata_operators();

}  // namespace sherd::autograd
