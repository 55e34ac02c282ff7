// SPDX-License-Identifier: Apache-2.0
#include <sherd/fsdp/units.h>

#include <utility>

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include "base/check.h"
#include "fsdp/unit_modules.h"

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

}  // namespace

std::vector<Policy> Policy::required() const {
  if (may_take_none_) {
    return {};
  }
  if (parts_.empty()) {
    return {*this};
  }
  std::vector<Policy> all;
  for (const auto& part : parts_) {
    const auto of_part = part.required();
    all.insert(all.end(), of_part.begin(), of_part.end());
  }
  return all;
}

Policy children_of_lists() {
  return {
      [](const Candidate& candidate) {
        return candidate.parent != nullptr && is_list(*candidate.parent);
      },
      "children_of_lists()"};
}

Policy every_nth_of_lists(std::int64_t n) {
  SHERD_CHECK(
      n >= 1, "[fsdp] every_nth_of_lists: expected at least 1, found ", n);
  return {
      [n, of_list = children_of_lists()](const Candidate& candidate) {
        return of_list(candidate) && place_in_parent(candidate) % n == 0;
      },
      str("every_nth_of_lists(", n, ")")};
}

Policy by_size(std::int64_t numel_min) {
  return {
      [numel_min](const Candidate& candidate) {
        return candidate.numel >= numel_min &&
            !has_no_forward(candidate.module);
      },
      str("by_size(", numel_min, ")")};
}

Policy by_name(std::string pattern) {
  auto text = str("by_name(\"", pattern, "\")");
  return {
      [pattern = std::move(pattern)](const Candidate& candidate) {
        return fsdp::name_matches(pattern, candidate.name);
      },
      std::move(text)};
}

Policy none() {
  return optional([](const Candidate&) { return false; });
}

Policy any_of(std::vector<Policy> policies) {
  Policy any = [policies](const Candidate& candidate) -> Answer {
    for (const auto& policy : policies) {
      if (auto answer = policy(candidate)) {
        return answer;
      }
    }
    return false;
  };
  any.parts_ = std::move(policies);
  return any;
}

Policy with_options(Policy policy, UnitOptions options) {
  Policy with = policy;
  with.function_ = [policy = std::move(policy), options = std::move(options)](
                       const Candidate& candidate) -> Answer {
    return policy(candidate) ? Answer(options) : Answer(false);
  };
  return with;
}

Policy together(
    const std::vector<std::string>& names, const UnitOptions& options) {
  SHERD_CHECK(
      !names.empty() && options.name.empty(),
      "[fsdp] units::together expects names of modules, after which it names "
      "the unit; found ",
      names.size(), " names and options.name \"", options.name, "\"");
  auto of_each = options;
  for (const auto& name : names) {
    of_each.name += (of_each.name.empty() ? "" : "+") + name;
  }
  std::vector<Policy> policies;
  for (const auto& name : names) {
    policies.push_back(with_options(by_name(name), of_each));
  }
  return any_of(std::move(policies));
}

Policy inside(Policy policy, UnitOptions options) {
  options.own_unit = false;
  return with_options(std::move(policy), std::move(options));
}

Policy optional(Policy policy) {
  policy.may_take_none_ = true;
  return policy;
}

}  // namespace sherd::units
