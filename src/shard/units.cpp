// SPDX-License-Identifier: Apache-2.0
#include <sherd/shard/units.h>

#include <string_view>
#include <utility>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/container/moduledict.h>

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
