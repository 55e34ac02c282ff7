// SPDX-License-Identifier: Apache-2.0
#include <sherd/models/script_modules.h>

#include <map>
#include <string>
#include <sherd/base/error.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

namespace sherd::models {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

std::string class_of(const torch::jit::Module& script) {
  const auto name = script.type()->name();
  return name ? name->name() : "";
}

// An empty module of the same kind as the script.
ModulePtr empty_module(const torch::jit::Module& script) {
  const auto kind = class_of(script);
  const auto name = script.type()->name();
  // A suffix follows if several classes have the name.
  constexpr auto kPrefix = "__torch__.torch.nn.modules.container";
  if (name && name->prefix().starts_with(kPrefix)) {
    if (kind == "ModuleList") {
      return std::make_shared<torch::nn::ModuleListImpl>();
    }
    if (kind == "ModuleDict") {
      return std::make_shared<torch::nn::ModuleDictImpl>();
    }
    if (kind == "Sequential") {
      return std::make_shared<torch::nn::SequentialImpl>();
    }
  }
  return std::make_shared<torch::nn::Module>(kind);
}

// `known`: the modules made so far, by their script.
ModulePtr module_of(
    const torch::jit::Module& script, std::map<const void*, ModulePtr>& known) {
  auto& module = known[script._ivalue().get()];
  if (module != nullptr) {
    return module;
  }
  module = empty_module(script);
  for (const auto& item : script.named_parameters(/*recurse=*/false)) {
    module->register_parameter(
        item.name, item.value, item.value.requires_grad());
  }
  for (const auto& item : script.named_buffers(/*recurse=*/false)) {
    module->register_buffer(item.name, item.value);
  }
  for (const auto& item : script.named_children()) {
    module->register_module(item.name, module_of(item.value, known));
  }
  return module;
}

}  // namespace

std::shared_ptr<torch::nn::Module> script_modules(
    const torch::jit::Module& script) {
  std::map<const void*, ModulePtr> known;
  auto module = module_of(script, known);
  if (module->parameters().empty()) {
    throw Error(
        "[models] the TorchScript module " + class_of(script) +
        " has no parameters; expected at least one, as before "
        "torch::jit::freeze(), which makes them constants");
  }
  return module;
}

}  // namespace sherd::models
