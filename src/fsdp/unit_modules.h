// SPDX-License-Identifier: Apache-2.0
//
// Finds the modules of a model that a units::Policy makes units or checkpoints. Thread rule: pure
// functions, any thread; the addresses are valid as long as the modules are.
#pragma once

#include <string>
#include <string_view>
#include <vector>
#include <sherd/fsdp/units.h>

namespace sherd::fsdp {

struct UnitModule {
  // The first name under which it is registered, e.g. "h.3".
  std::string name;
  const torch::nn::Module* module = nullptr;
  units::UnitOptions options = {};
};

// Returns "a.b", or "b" at the root.
std::string join_names(const std::string& prefix, const std::string& name);

// In a pattern, `*` matches any text without a dot, and `?` one character that is not a dot.
bool name_matches(std::string_view pattern, std::string_view name);
// Whether a pattern matches the name of a parameter or module, or of a module around it.
bool is_ignored(
    const std::vector<std::string>& patterns, std::string_view name);

// Returns the modules that the policy takes, children before parents; never `root` itself, and none
// that is ignored.
std::vector<UnitModule> unit_modules(
    const torch::nn::Module& root,
    const units::Policy& policy,
    const std::vector<std::string>& ignored = {});

// Throws Error if a policy that must take a module takes none, and names it.
void check_takes_modules(
    const torch::nn::Module& root,
    const units::Policy& policy,
    const std::vector<std::string>& ignored);

}  // namespace sherd::fsdp
