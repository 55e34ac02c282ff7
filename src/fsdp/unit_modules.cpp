// SPDX-License-Identifier: Apache-2.0
#include "fsdp/unit_modules.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include <torch/nn/module.h>

#include "base/check.h"

namespace sherd::fsdp {
namespace {

using torch::nn::Module;
using units::Candidate;

// Asks a policy about the modules below a root, children before parents.
class PolicyWalk {
 public:
  using Taken = std::function<void(const Candidate&, const units::Answer&)>;

  PolicyWalk(
      const units::Policy& policy,
      const std::vector<std::string>& ignored,
      Taken taken)
      : policy_(policy), ignored_(ignored), taken_(std::move(taken)) {}

  // Returns the elements of `module` no unit inside has taken.
  std::int64_t decide(
      const Module& module, const std::string& name, const Module* parent) {
    if (is_ignored(ignored_, name) || !decided_.insert(&module).second) {
      return 0;  // Registered twice: its first place counts.
    }
    std::int64_t numel = 0;
    for (const auto& own : module.named_parameters(/*recurse=*/false)) {
      if (!is_ignored(ignored_, join_names(name, own.key())) &&
          counted_.insert(own.value().unsafeGetTensorImpl()).second) {
        numel += own.value().numel();
      }
    }
    for (const auto& child : module.named_children()) {
      numel += decide(*child.value(), join_names(name, child.key()), &module);
    }
    if (parent == nullptr) {
      return numel;
    }
    const Candidate candidate{name, module, parent, numel};
    const auto answer = policy_(candidate);
    taken_(candidate, answer);
    return answer && answer.options().own_unit ? 0 : numel;
  }

 private:
  const units::Policy& policy_;
  const std::vector<std::string>& ignored_;
  const Taken taken_;
  std::set<const Module*> decided_;
  std::set<const c10::TensorImpl*> counted_;
};

}  // namespace

std::string join_names(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

bool name_matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) {
    return name.empty();
  }
  if (pattern.front() == '*') {
    for (std::size_t taken = 0;; ++taken) {
      if (name_matches(pattern.substr(1), name.substr(taken))) {
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
  return same && name_matches(pattern.substr(1), name.substr(1));
}

bool is_ignored(
    const std::vector<std::string>& patterns, std::string_view name) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    for (auto end = name.find('.'); end != std::string_view::npos;
         end = name.find('.', end + 1)) {
      if (name_matches(pattern, name.substr(0, end))) {
        return true;
      }
    }
    return !name.empty() && name_matches(pattern, name);
  });
}

std::vector<UnitModule> unit_modules(
    const Module& root,
    const units::Policy& policy,
    const std::vector<std::string>& ignored) {
  std::vector<UnitModule> taken;
  PolicyWalk walk(
      policy, ignored,
      [&](const Candidate& candidate, const units::Answer& answer) {
        if (answer) {
          taken.push_back(
              {candidate.name, &candidate.module, answer.options()});
        }
      });
  walk.decide(root, "", nullptr);
  return taken;
}

void check_takes_modules(
    const Module& root,
    const units::Policy& policy,
    const std::vector<std::string>& ignored) {
  const auto required = policy.required();
  std::vector<bool> takes(required.size(), false);
  std::string names;
  int listed = 0;
  PolicyWalk walk(
      policy, ignored, [&](const Candidate& candidate, const units::Answer&) {
        for (std::size_t p = 0; p < required.size(); ++p) {
          takes[p] = takes[p] || static_cast<bool>(required[p](candidate));
        }
        if (++listed <= 8) {
          names += str(listed == 1 ? "" : ", ", candidate.name);
        }
      });
  walk.decide(root, "", nullptr);
  for (std::size_t p = 0; p < required.size(); ++p) {
    SHERD_CHECK(
        takes[p], "[fsdp] options.units: ", required[p].text(),
        " takes none of the module's ", listed, " modules (", names,
        listed > 8 ? ", ..." : "",
        "); expected a policy that takes one, or units::none() or "
        "units::optional(policy)");
  }
}

}  // namespace sherd::fsdp
