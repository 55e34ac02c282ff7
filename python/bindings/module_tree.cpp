// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include "bindings.h"

namespace sherd::python {
namespace {

// register_module() and its like are protected in some versions of LibTorch.
struct Node : torch::nn::Module {
  using torch::nn::Module::register_buffer;
  using torch::nn::Module::register_module;
  using torch::nn::Module::register_parameter;
};

// "h.0" and "weight" of "h.0.weight".
std::pair<std::string, std::string> split(const std::string& name) {
  const auto dot = name.rfind('.');
  if (dot == std::string::npos) {
    return {"", name};
  }
  return {name.substr(0, dot), name.substr(dot + 1)};
}

// The nodes of a tree by dotted name. A module finds a child by a copy of all its children,
// so that asking it would take a time quadratic in their number.
class Nodes {
 public:
  explicit Nodes(Node& root) { by_name_.emplace("", &root); }

  // The node of a name, which is made with all above it where it is not there yet.
  Node& of(const std::string& name) {
    if (const auto found = by_name_.find(name); found != by_name_.end()) {
      return *found->second;
    }
    const auto [parent, own] = split(name);
    auto& made = *of(parent).register_module(own, std::make_shared<Node>());
    by_name_.emplace(name, &made);
    return made;
  }

 private:
  std::unordered_map<std::string, Node*> by_name_;
};

// An embedding tells replicate() that its gradient is sparse.
std::shared_ptr<torch::nn::EmbeddingImpl> sparse_embedding(
    const at::Tensor& weight) {
  torch::nn::EmbeddingOptions options(weight.size(0), weight.size(1));
  options.sparse(true)._weight(weight);
  const bool trainable = weight.requires_grad();
  auto embedding = std::make_shared<torch::nn::EmbeddingImpl>(options);
  embedding->weight.set_requires_grad(trainable);
  return embedding;
}

}  // namespace

ModuleTree::ModuleTree(
    const std::vector<std::string>& modules,
    const NamedTensors& parameters,
    const NamedTensors& buffers,
    const std::vector<std::string>& sparse) {
  auto top = std::make_shared<Node>();
  Nodes nodes(*top);
  const std::unordered_set<std::string> embeddings(
      sparse.begin(), sparse.end());
  for (const auto& name : modules) {
    if (!embeddings.contains(name)) {
      nodes.of(name);
    }
  }
  for (const auto& [name, tensor] : parameters) {
    const auto [module, own] = split(name);
    if (module.empty() && embeddings.contains(module)) {
      root = sparse_embedding(tensor);
      return;  // It has nothing else.
    }
    if (embeddings.contains(module)) {
      const auto [parent, name_in_parent] = split(module);
      nodes.of(parent).register_module(
          name_in_parent, sparse_embedding(tensor));
      continue;
    }
    nodes.of(module).register_parameter(own, tensor, tensor.requires_grad());
  }
  for (const auto& [name, tensor] : buffers) {
    const auto [module, own] = split(name);
    nodes.of(module).register_buffer(own, tensor);
  }
  root = std::move(top);
}

void bind_module_tree(py::module_& module) {
  py::class_<ModuleTree>(module, "ModuleTree")
      .def(
          py::init<
              const std::vector<std::string>&, const NamedTensors&,
              const NamedTensors&, const std::vector<std::string>&>(),
          py::arg("modules"), py::arg("parameters"), py::arg("buffers"),
          py::arg("sparse") = std::vector<std::string>());
}

}  // namespace sherd::python
