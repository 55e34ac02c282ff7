// SPDX-License-Identifier: Apache-2.0
//
// Policies that say which modules become units, whose parameters are gathered and dropped together.
// A policy is asked about every module once, children before parents. A parameter belongs to the
// innermost module that the policy takes, and to the root unit if there is none. Smaller units need
// less memory and more messages. Mirrors the auto_wrap_policy of PyTorch's FSDP1. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace torch::nn {
class Module;
}

namespace sherd::units {

struct Candidate {
  std::string name;  // e.g. "h.3"; empty for the model itself.
  const torch::nn::Module& module;
  const torch::nn::Module* parent = nullptr;  // Null for the model itself.
  // Elements of its parameters that no unit inside it has taken.
  std::int64_t numel = 0;
};

using Policy = std::function<bool(const Candidate&)>;

// The default: each child of a ModuleList or Sequential.
Policy children_of_lists();

// Every module of class T (the Impl class), e.g. of_type<BlockImpl>().
template <typename T>
Policy of_type() {
  return [](const Candidate& candidate) {
    return dynamic_cast<const T*>(&candidate.module) != nullptr;
  };
}

// Every n-th child of each list, from the first on: "h.0", "h.2", ... for 2. Throws Error when n is
// below 1. Meant for ActivationCheckpointing.
Policy every_nth_of_lists(std::int64_t n);

// Modules with at least this many elements that no inner unit has taken; never a list, which has no
// forward of its own.
Policy by_size(std::int64_t numel_min);

// Modules whose name matches a pattern of `*` and `?`, e.g. "h.*" or "encoder.layer?"; `*` does not
// cross a dot.
Policy by_name(std::string pattern);

// No module: all parameters belong to the root unit.
Policy none();

}  // namespace sherd::units
