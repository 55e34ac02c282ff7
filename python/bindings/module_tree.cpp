// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
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

// The node of a dotted name, which is made with all above it where it is not there yet.
Node& node_of(Node& root, const std::string& name) {
  Node* node = &root;
  std::size_t begin = 0;
  while (begin < name.size()) {
    const auto end = std::min(name.find('.', begin), name.size());
    const auto part = name.substr(begin, end - begin);
    const auto children = node->named_children();
    const auto* child = children.find(part);
    node = child == nullptr
        ? node->register_module(part, std::make_shared<Node>()).get()
        : static_cast<Node*>(child->get());
    begin = end + 1;
  }
  return *node;
}

// "h.0" and "weight" of "h.0.weight".
std::pair<std::string, std::string> split(const std::string& name) {
  const auto dot = name.rfind('.');
  if (dot == std::string::npos) {
    return {"", name};
  }
  return {name.substr(0, dot), name.substr(dot + 1)};
}

bool is_one_of(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// An embedding tells replicate() that its gradient is sparse.
void register_sparse(
    Node& root, const std::string& name, const at::Tensor& weight) {
  const auto [parent, own] = split(name);
  torch::nn::EmbeddingOptions options(weight.size(0), weight.size(1));
  options.sparse(true)._weight(weight);
  const bool trainable = weight.requires_grad();
  auto embedding = std::make_shared<torch::nn::EmbeddingImpl>(options);
  embedding->weight.set_requires_grad(trainable);
  node_of(root, parent).register_module(own, std::move(embedding));
}

}  // namespace

ModuleTree::ModuleTree(
    const std::vector<std::string>& modules,
    const NamedTensors& parameters,
    const NamedTensors& buffers,
    const std::vector<std::string>& sparse) {
  auto top = std::make_shared<Node>();
  for (const auto& name : modules) {
    if (!is_one_of(sparse, name)) {
      node_of(*top, name);
    }
  }
  for (const auto& [name, tensor] : parameters) {
    const auto [module, own] = split(name);
    if (is_one_of(sparse, module)) {
      register_sparse(*top, module, tensor);
      continue;
    }
    node_of(*top, module)
        .register_parameter(own, tensor, tensor.requires_grad());
  }
  for (const auto& [name, tensor] : buffers) {
    const auto [module, own] = split(name);
    node_of(*top, module).register_buffer(own, tensor);
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
