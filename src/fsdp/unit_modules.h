// SPDX-License-Identifier: Apache-2.0
//
// The modules of a model that a units::Policy makes units, or checkpoints, of. Pure functions; the
// addresses are valid as long as the modules are. Thread rule: any thread.
#pragma once

#include <string>
#include <vector>
#include <sherd/fsdp/units.h>

namespace sherd::fsdp {

struct UnitModule {
  std::string name;  // e.g. "h.3": the first one it is registered under.
  const torch::nn::Module* module = nullptr;
};

// Returns "a.b", or "b" at the root.
std::string join_names(const std::string& prefix, const std::string& name);

// Returns the modules that the policy takes, children before parents; never `root` itself.
std::vector<UnitModule> unit_modules(
    const torch::nn::Module& root, const units::Policy& policy);

}  // namespace sherd::fsdp
