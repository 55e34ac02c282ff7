// SPDX-License-Identifier: Apache-2.0
//
// Whole states in memory, and checkpoints.
#include <pybind11/functional.h>
#include <sherd/base/error.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/sgd.h>
#include <sherd/optim/weight_average.h>
#include <torch/nn/module.h>
#include "bindings.h"

namespace sherd::python {
namespace {

// Section, name, dtype and shape of each tensor.
using ContentTensors = std::vector<std::tuple<
    std::string,
    std::string,
    std::string,
    std::vector<std::int64_t>>>;

// The state of an optimizer of sherd.
template <typename Optimizer>
void bind_optimizer_state(py::module_& module, py::class_<State>& state) {
  state.def(
      "add_optimizer",
      [](State& self, const std::string& section, Optimizer& optimizer,
         const NamedParameters& parameters) {
        self.add(section, optimizer, parameters);
      },
      py::keep_alive<1, 3>());
  // The state of what has had an update and of those named, for which it is made.
  module.def(
      "optimizer_tensors",
      [](Optimizer& optimizer, const std::set<std::string>& also) {
        StateTensors result;
        for (const auto& item : optimizer.tensors(also)) {
          result.emplace_back(item.parameter, item.key, item.tensor);
        }
        return result;
      });
}

void bind_state_of_job(py::module_& module) {
  py::class_<State> state(module, "CheckpointState");
  state.def(py::init())
      .def(
          "add_parameters",
          [](State& self, NamedParameters parameters) {
            parameters.state_only.clear();  // Python adds them by itself.
            self.add(parameters);
          })
      .def(
          "add_averages",
          [](State& self, const WeightAverage& average) {
            self.add("ema", average.averages());
          })
      .def("add_tensors", &State::add_tensors)
      .def("add_optimizer", &State::add_torch_optimizer)
      .def(
          "add_buffers",
          [](State& self, const ModuleTree& tree) {
            self.add_buffers(*tree.root);
          })
      .def("add_generator", &State::add_generator)
      .def_readwrite("values", &State::values);
  bind_optimizer_state<AdamW>(module, state);
  bind_optimizer_state<Sgd>(module, state);
  bind_optimizer_state<Muon>(module, state);
  // Name, shape and begin of this rank's slice of each; none where they are whole.
  module.def("whole_parameters", [](const NamedParameters& parameters) {
    std::vector<
        std::tuple<std::string, std::vector<std::int64_t>, std::int64_t>>
        items;
    for (const auto& item : parameters.whole.items) {
      items.emplace_back(item.name, item.shape, item.slice_begin);
    }
    return items;
  });
}

void bind_reports(py::module_& module) {
  py::class_<LoadReport>(module, "LoadReport")
      .def(py::init())
      .def_readonly("folder", &LoadReport::folder)
      .def_readonly("step", &LoadReport::step)
      .def_readonly("world_size", &LoadReport::world_size)
      .def_readonly("missing", &LoadReport::missing)
      .def_readonly("unexpected", &LoadReport::unexpected)
      .def_readonly("bytes_read", &LoadReport::bytes_read);
  // And the values.
  module.def(
      "checkpoint_content",
      [](const std::string& folder) {
        const auto content = checkpoint_content(folder);
        ContentTensors tensors;
        for (const auto& tensor : content.tensors) {
          tensors.emplace_back(
              tensor.section, tensor.name, tensor.dtype, tensor.shape);
        }
        return std::make_pair(std::move(tensors), content.values);
      },
      WithoutGil());
}

void bind_full_state(py::module_& module) {
  module.def(
      "gather_full_state",
      [](const World& world, const State& state) {
        return gather_full_state(world, state);
      },
      WithoutGil());
  module.def(
      "scatter_full_state",
      [](const World& world, const FullState& full, State& state, bool strict) {
        return scatter_full_state(world, full, state, {.strict = strict});
      },
      WithoutGil());
  module.def(
      "all_gather_texts",
      [](const World& world, const std::string& mine) {
        std::vector<std::string> texts;
        {
          const py::gil_scoped_release released;
          texts = world.all_gather_texts(mine);
        }
        std::vector<py::bytes> result(texts.begin(), texts.end());
        return result;
      },
      py::call_guard<OutsideHandlers>());
}

// The error that a function of Python has raised, as load_newest_checkpoint() expects it.
Error error_of(const py::error_already_set& raised) {
  const auto unavailable =
      py::module_::import("sherd.errors").attr("UnavailableError");
  return Error(
      py::str(raised.value()).cast<std::string>(),
      raised.matches(unavailable) ? ErrorCode::kUnavailable
                                  : ErrorCode::kFailedPrecondition);
}

// Calls `load` with the newest checkpoint's folder, and while that is damaged, with the one's
// before. Raises what `load` raised.
std::optional<LoadReport> load_newest(
    const World& world, const std::string& folder, const py::function& load) {
  std::optional<py::error_already_set> last;
  std::optional<LoadReport> report;
  try {
    const py::gil_scoped_release released;
    report =
        load_newest_checkpoint(world, folder, [&](const std::string& path) {
          const py::gil_scoped_acquire acquired;
          try {
            return load(path).cast<LoadReport>();
          } catch (const py::error_already_set& raised) {
            last.emplace(raised);
            throw error_of(raised);
          }
        });
  } catch (const Error& error) {
    if (last && error.code() != ErrorCode::kUnavailable) {
      throw py::error_already_set(*last);
    }
    throw;
  }
  return report;
}

void bind_hook_state(py::module_& module) {
  module.def(
      "add_hook_state",
      [](State& state, const HookState& hook, const Mesh& mesh) {
        add_hook_state(state, hook, mesh);
      },
      WithoutGil());
  // `tensors` as checkpoint_content() returns them.
  module.def(
      "room_for_hook_state",
      [](const ContentTensors& tensors, const Mesh& mesh) {
        CheckpointContent content;
        for (const auto& [section, name, dtype, shape] : tensors) {
          content.tensors.push_back(
              {.section = section,
               .name = name,
               .dtype = dtype,
               .shape = shape});
        }
        return room_for_hook_state(content, mesh);
      });
}

void bind_folders(py::module_& module) {
  module.def(
      "load_newest_checkpoint", &load_newest,
      py::call_guard<OutsideHandlers>());
  module.def(
      "load_checkpoint",
      [](const World& world, const std::string& folder, State& state,
         bool verify_first) {
        // Python compares names by itself.
        return load_checkpoint(
            world, folder, state,
            {.strict = false, .verify_first = verify_first});
      },
      WithoutGil());
  py::class_<CheckpointSaver>(module, "CheckpointSaver", DestroyedWithoutGil())
      .def(
          py::init([](const World& world, const std::string& folder,
                      bool asynchronous, int keep_last, std::int64_t keep_every,
                      bool shared, std::int64_t file_bytes_max) {
            // Python keeps a list of its instances, to which a factory adds with the GIL.
            const py::gil_scoped_release without_gil;
            return std::make_unique<CheckpointSaver>(
                world, folder,
                SaveOptions{
                    .asynchronous = asynchronous,
                    .keep_last = keep_last,
                    .keep_every = keep_every,
                    .shared = shared,
                    .file_bytes_max = file_bytes_max});
          }),
          py::arg("world"), py::arg("folder"), py::arg("asynchronous"),
          py::arg("keep_last"), py::arg("keep_every"), py::arg("shared"),
          py::arg("file_bytes_max"), py::keep_alive<1, 2>(),
          py::call_guard<OutsideHandlers>())
      .def(
          "save",
          [](CheckpointSaver& self, std::int64_t step, const State& state) {
            self.save(step, state);
          },
          WithoutGil())
      .def("wait", &CheckpointSaver::wait, WithoutGil())
      .def("saving", &CheckpointSaver::saving)
      .def("newest", &CheckpointSaver::newest, WithoutGil());
}

}  // namespace

std::vector<OptimizerTensor> State::TorchOptimizer::tensors(
    const std::set<std::string>& /*also*/) const {
  std::vector<OptimizerTensor> result;
  for (const auto& [parameter, key, tensor] : read()) {
    result.push_back({parameter, key, tensor.detach()});
  }
  return result;
}

void State::add_tensors(
    const std::string& section, const NamedTensors& tensors, bool of_rank0) {
  for (const auto& [name, tensor] : tensors) {
    add(section,
        {.name = name,
         .shape = tensor.sizes().vec(),
         .elements = tensor.detach(),
         .copies = of_rank0 ? Copies::kRank0 : Copies::kEqual});
  }
}

void State::add_torch_optimizer(
    const std::string& section,
    std::function<StateTensors()> read,
    const NamedParameters& parameters) {
  optimizers.push_back({std::move(read)});
  add(section, optimizers.back(), parameters);
}

void bind_state(py::module_& module) {
  bind_reports(module);
  bind_state_of_job(module);
  bind_full_state(module);
  bind_hook_state(module);
  bind_folders(module);
}

}  // namespace sherd::python
