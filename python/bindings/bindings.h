// SPDX-License-Identifier: Apache-2.0
//
// What the files of the extension sherd._core share. Each binds one area of sherd's public headers;
// docstrings that users read are in python/sherd.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ddp/comm_hook.h>
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

// A tree of C++ modules that holds the tensors of a Python module under their names, so that what
// sherd does to the tree's tensors happens to those of the Python module. Tensors and modules that
// have two names are there twice. Must live as long as the handle that is made of it.
struct ModuleTree {
  // `modules` are the names of all submodules, `sparse` those of embeddings whose gradients are
  // sparse, which have a weight and nothing else.
  ModuleTree(
      const std::vector<std::string>& modules,
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      const std::vector<std::string>& sparse = {});

  std::shared_ptr<torch::nn::Module> root;
};

// Name of the parameter, of the state, and the state itself.
using StateTensors =
    std::vector<std::tuple<std::string, std::string, at::Tensor>>;

// A CheckpointState with what it refers to.
struct State : CheckpointState {
  // One of torch.optim, whose state Python puts together whenever it is asked for.
  struct TorchOptimizer {
    std::vector<OptimizerTensor> tensors(
        const std::set<std::string>& also) const;
    std::function<StateTensors()> read;
  };

  void add_tensors(
      const std::string& section, const NamedTensors& tensors, bool of_rank0);
  void add_torch_optimizer(
      const std::string& section,
      std::function<StateTensors()> read,
      const NamedParameters& parameters);

  std::deque<TorchOptimizer> optimizers;
};

// For classes whose destructor may have to wait for threads.
using DestroyedWithoutGil = py::release_gil_before_calling_cpp_dtor;

// Gives a duration in milliseconds of some options as seconds.
template <auto member, typename Options>
void bind_seconds(py::class_<Options>& type, const char* name) {
  using Seconds = std::chrono::duration<double>;
  type.def_property(
      name,
      [](const Options& options) { return Seconds(options.*member).count(); },
      [](Options& options, double seconds) {
        options.*member = std::chrono::duration_cast<std::chrono::milliseconds>(
            Seconds(seconds));
      });
}

// Calls a function of Python with the buffers and a group; none for None.
BufferHook buffer_hook_of(const py::object& function);

void bind_embedding(py::module_& module);
void bind_scopes(py::module_& module);
void bind_module_tree(py::module_& module);
void bind_world(py::module_& module);
void bind_fully_shard(py::module_& module);
void bind_hooks(py::module_& module);
void bind_replicate(py::module_& module);
void bind_optimizers(py::module_& module);
void bind_state(py::module_& module);
void bind_ft(py::module_& module);

}  // namespace sherd::python
