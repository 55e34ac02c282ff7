// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's own operators by name, for lists of operators that are treated in some way. Thread
// rule: any thread.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>
#include <unordered_set>
#include <ATen/core/dispatch/Dispatcher.h>

namespace sherd::autograd {

inline constexpr std::string_view kAten = "aten::";

// The overloads of these operators, named without kAten, whose schema `takes`. Goes through all
// operators that are registered.
template <typename Takes>
std::unordered_set<c10::OperatorHandle> aten_operators(
    std::span<const std::string_view> names, const Takes& takes) {
  std::unordered_set<c10::OperatorHandle> found;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const std::string_view full = name.name;
    if (!full.starts_with(kAten) ||
        std::ranges::find(names, full.substr(kAten.size())) == names.end()) {
      continue;
    }
    const auto op = dispatcher.findSchema(name);
    if (op && takes(op->schema())) {
      found.insert(*op);
    }
  }
  return found;
}

}  // namespace sherd::autograd
