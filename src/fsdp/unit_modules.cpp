// SPDX-License-Identifier: Apache-2.0
#include "fsdp/unit_modules.h"

#include <cstdint>
#include <set>

#include <torch/nn/module.h>

namespace sherd::fsdp {
namespace {

using torch::nn::Module;

class PolicyWalk {
 public:
  explicit PolicyWalk(const units::Policy& policy) : policy_(policy) {}

  // Children first: returns the elements of `module` no unit inside has taken.
  std::int64_t decide(
      const Module& module, const std::string& name, const Module* parent) {
    if (!decided_.insert(&module).second) {
      return 0;  // Registered twice; its first place counts.
    }
    std::int64_t numel = 0;
    for (const auto& own : module.named_parameters(/*recurse=*/false)) {
      if (counted_.insert(own.value().unsafeGetTensorImpl()).second) {
        numel += own.value().numel();
      }
    }
    for (const auto& child : module.named_children()) {
      numel += decide(*child.value(), join_names(name, child.key()), &module);
    }
    if (parent != nullptr && policy_({name, module, parent, numel})) {
      taken.push_back({name, &module});
      return 0;
    }
    return numel;
  }

  std::vector<UnitModule> taken;

 private:
  const units::Policy& policy_;
  std::set<const Module*> decided_;
  std::set<const c10::TensorImpl*> counted_;
};

}  // namespace

std::string join_names(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::vector<UnitModule> unit_modules(
    const Module& root, const units::Policy& policy) {
  PolicyWalk walk(policy);
  walk.decide(root, "", nullptr);
  return std::move(walk.taken);
}

}  // namespace sherd::fsdp
