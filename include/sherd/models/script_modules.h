// SPDX-License-Identifier: Apache-2.0
//
// A TorchScript module as modules of torch::nn, so that all of sherd takes it: fully_shard(),
// replicate(), units, checkpoints and replica sessions.
//
//   auto script = torch::jit::load("model.pt");
//   auto modules = sherd::models::script_modules(script);
//   auto fsdp = sherd::fully_shard(*modules, world);
//   auto adamw = sherd::AdamW(fsdp.named_parameters(), {.learning_rate = 3e-4});
//   script.forward({batch}).toTensor().backward();   // As on one device.
//
// The modules hold the script's own tensors and have no forward; the script keeps its methods, and
// train(), eval() and save() are called on it. Concepts: docs/guide/torchscript.md.
#pragma once

#include <memory>

namespace torch::jit {
struct Module;
}
namespace torch::nn {
class Module;
}

namespace sherd::models {

// Returns a tree with the children, parameters and buffers of `script` under the names they have
// there; a module or parameter that comes twice is the same one twice. ModuleList, ModuleDict and
// Sequential become LibTorch's classes, so that units::children_of_lists() and units::by_size()
// know them. The name() of any other module is that of its class in Python, e.g. "Block", which a
// policy of one's own can ask for; units::of_type() finds none. What the script gets later is not
// seen. Throws Error when the script has no parameters, as after torch::jit::freeze(), which makes
// them constants of its code. Thread rule: as for the script.
std::shared_ptr<torch::nn::Module> script_modules(
    const torch::jit::Module& script);

}  // namespace sherd::models
