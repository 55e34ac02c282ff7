// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's own operators by name, for lists of operators that are treated in some way, and the
// tensors among their arguments and results. Thread rule: any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

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

// Replaces each tensor, also those in lists, which are copied, because the caller may keep them.
template <typename Replace>
void replace_tensors(std::span<c10::IValue> values, const Replace& replace) {
  for (auto& value : values) {
    if (value.isTensor()) {
      value = replace(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorList().copy();
      for (std::size_t i = 0; i < list.size(); ++i) {
        list.set(i, replace(list.get(i)));
      }
      value = std::move(list);
    }
  }
}

}  // namespace sherd::autograd
