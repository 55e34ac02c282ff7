// SPDX-License-Identifier: Apache-2.0
//
// Wraps a TorchScript module in modules of torch::nn, so that all of sherd works with it:
// fully_shard(), replicate(), units, checkpoints and replica sessions.
//
//   auto script = torch::jit::load("model.pt");
//   auto modules = sherd::models::script_modules(script);
//   auto fsdp = sherd::fully_shard(*modules, world);
//   auto adamw = sherd::AdamW(fsdp.named_parameters(), {.learning_rate = 3e-4});
//   script.forward({batch}).toTensor().backward();   // As on one device.
//
// The modules hold the script's own tensors and have no forward. The script keeps its methods: call
// train(), eval() and save() on it. Concepts: docs/guide/torchscript.md.
#pragma once

#include <memory>

namespace torch::jit {
struct Module;
}
namespace torch::nn {
class Module;
}

namespace sherd::models {

// Returns a tree with the children, parameters and buffers of `script`, under the same names. A
// module or parameter that occurs twice in the script occurs twice in the tree. ModuleList,
// ModuleDict and Sequential become LibTorch's classes, so that units::children_of_lists() and
// units::by_size() know them. The name() of any other module is that of its Python class, e.g.
// "Block"; your own policy can ask for it, but units::of_type() finds none. Later additions to the
// script are not seen. Throws Error if the script has no parameters, as after torch::jit::freeze(),
// which makes them constants of its code. Thread rule: as for the script.
std::shared_ptr<torch::nn::Module> script_modules(
    const torch::jit::Module& script);

}  // namespace sherd::models
