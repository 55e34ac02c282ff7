// SPDX-License-Identifier: Apache-2.0
//
// Asks a units::Policy about each module of a model. A pure function; the
// addresses are valid as long as the modules are. Thread rule: any thread.
#pragma once

#include <string>
#include <vector>
#include <sherd/fsdp/units.h>
#include <torch/nn/module.h>

namespace sherd::fsdp {

struct UnitModule {
  std::string name;  // e.g. "h.3"; of its first place.
  const torch::nn::Module* module = nullptr;
};

// "a.b", and "b" at the root.
std::string join_names(const std::string& prefix, const std::string& name);

// Those it takes, children before parents; never `root` itself.
std::vector<UnitModule> unit_modules(
    const torch::nn::Module& root, const units::Policy& policy);

}  // namespace sherd::fsdp
