// SPDX-License-Identifier: Apache-2.0
//
// What the files of the extension sherd._core share. Each binds one area of sherd's public headers;
// docstrings that users read are in python/sherd.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

namespace torch::nn {
class Module;
}

namespace sherd::python {

namespace py = pybind11;

// Throws Error in a handler of a signal that runs while its thread waits in sherd: that wait holds
// locks, for which a call would wait for ever.
struct OutsideHandlers {
  OutsideHandlers();
};

// Ranks wait for each other in almost every call, and other threads of Python go on meanwhile.
using WithoutGil = py::call_guard<OutsideHandlers, py::gil_scoped_release>;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// A tree of C++ modules that holds the tensors of a Python module under their names, so that what
// sherd does to the tree's tensors happens to those of the Python module. Tensors and modules that
// have two names are there twice.
struct ModuleTree {
  // `modules` are the names of all submodules.
  ModuleTree(
      const std::vector<std::string>& modules,
      const NamedTensors& parameters,
      const NamedTensors& buffers);

  std::shared_ptr<torch::nn::Module> root;
};

// Something that a scope of C++ holds while a `with` statement of Python runs.
class Scope {
 public:
  explicit Scope(std::function<std::shared_ptr<void>()> open)
      : open_(std::move(open)) {}
  void enter() { held_ = open_(); }
  void exit() { held_.reset(); }

 private:
  std::function<std::shared_ptr<void>()> open_;
  std::shared_ptr<void> held_;
};

// Makes an object of a move-only scope.
template <typename Open>
std::unique_ptr<Scope> make_scope(Open open) {
  return std::make_unique<Scope>([open = std::move(open)] {
    using Opened = decltype(open());
    return std::static_pointer_cast<void>(std::make_shared<Opened>(open()));
  });
}

// Destroys what may have to wait for its threads.
struct DeleteWithoutGil {
  template <typename T>
  void operator()(T* object) const {
    const py::gil_scoped_release released;
    std::default_delete<T>()(object);
  }
};
template <typename T>
using Owned = std::unique_ptr<T, DeleteWithoutGil>;
template <typename T>
Owned<T> own(T object) {
  return Owned<T>(std::make_unique<T>(std::move(object)).release());
}

void bind_embedding(py::module_& module);
void bind_module_tree(py::module_& module);
void bind_world(py::module_& module);
void bind_fully_shard(py::module_& module);
void bind_replicate(py::module_& module);
void bind_optimizers(py::module_& module);
void bind_state(py::module_& module);
void bind_ft(py::module_& module);

}  // namespace sherd::python
