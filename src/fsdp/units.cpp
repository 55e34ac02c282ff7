// SPDX-License-Identifier: Apache-2.0
#include <sherd/fsdp/units.h>

#include <string_view>
#include <utility>

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include "base/check.h"

namespace sherd::units {
namespace {

using torch::nn::Module;

bool is_list(const Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
      dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
}

bool has_no_forward(const Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
      dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr;
}

// Names need not be numbers: those of a Sequential may be given.
std::int64_t place_in_parent(const Candidate& candidate) {
  std::int64_t place = 0;
  for (const auto& sibling : candidate.parent->named_children()) {
    if (sibling.value().get() == &candidate.module) {
      break;
    }
    ++place;
  }
  return place;
}

// `*` matches any run without a dot, `?` one character that is no dot.
bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) {
    return name.empty();
  }
  if (pattern.front() == '*') {
    for (std::size_t taken = 0;; ++taken) {
      if (matches(pattern.substr(1), name.substr(taken))) {
        return true;
      }
      if (taken == name.size() || name[taken] == '.') {
        return false;
      }
    }
  }
  if (name.empty()) {
    return false;
  }
  const bool same = pattern.front() == '?' ? name.front() != '.'
                                           : pattern.front() == name.front();
  return same && matches(pattern.substr(1), name.substr(1));
}

}  // namespace

Policy children_of_lists() {
  return [](const Candidate& candidate) {
    return candidate.parent != nullptr && is_list(*candidate.parent);
  };
}

Policy every_nth_of_lists(std::int64_t n) {
  SHERD_CHECK(
      n >= 1, "[fsdp] every_nth_of_lists: expected at least 1, found ", n);
  return [n, of_list = children_of_lists()](const Candidate& candidate) {
    return of_list(candidate) && place_in_parent(candidate) % n == 0;
  };
}

Policy by_size(std::int64_t numel_min) {
  return [numel_min](const Candidate& candidate) {
    return candidate.numel >= numel_min && !has_no_forward(candidate.module);
  };
}

Policy by_name(std::string pattern) {
  return [pattern = std::move(pattern)](const Candidate& candidate) {
    return matches(pattern, candidate.name);
  };
}

Policy none() {
  return [](const Candidate&) { return false; };
}

}  // namespace sherd::units
