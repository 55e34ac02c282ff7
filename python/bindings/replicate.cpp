// SPDX-License-Identifier: Apache-2.0
#include <sherd/ddp/replicate.h>
#include <torch/nn/module.h>
#include "bindings.h"
#include "scope.h"

namespace sherd::python {
namespace {

void bind_options(py::module_& module) {
  using Options = ReplicateOptions;
  py::class_<Options>(module, "ReplicateOptions")
      .def(py::init())
      .def_readwrite("bucket_bytes", &Options::bucket_bytes)
      .def_readwrite("first_bucket_bytes", &Options::first_bucket_bytes)
      .def_readwrite("static_graph", &Options::static_graph)
      .def_readwrite("exchange", &Options::exchange)
      .def_readwrite(
          "reductions_under_way_max", &Options::reductions_under_way_max)
      .def_readwrite("param_dtype", &Options::param_dtype)
      .def_readwrite("reduce_dtype", &Options::reduce_dtype)
      .def_readwrite("init_sync", &Options::init_sync)
      .def_readwrite("broadcast_buffers", &Options::broadcast_buffers)
      .def_readwrite(
          "gradient_as_bucket_view", &Options::gradient_as_bucket_view)
      .def_readwrite("gradient_divide_factor", &Options::gradient_divide_factor)
      .def_readwrite("hook", &Options::hook)
      .def_property(
          "buffer_hook", [](const Options&) { return py::none(); },
          [](Options& options, const py::object& function) {
            options.buffer_hook = buffer_hook_of(function);
          })
      .def_readwrite("ignored", &Options::ignored);
  using Report = ReplicateReport;
  py::class_<Report>(module, "ReplicateReport")
      .def_readonly("world_size", &Report::world_size)
      .def_readonly("exchange", &Report::exchange)
      .def_readonly("parameters", &Report::parameters)
      .def_readonly("parameter_bytes", &Report::parameter_bytes)
      .def_readonly("buckets", &Report::buckets)
      .def_readonly("bucket_bytes", &Report::bucket_bytes)
      .def_readonly("backwards", &Report::backwards)
      .def_readonly("unused", &Report::unused)
      .def_readonly("same_graph", &Report::same_graph)
      .def_readonly("gradient_bytes", &Report::gradient_bytes)
      .def_readonly(
          "gradient_slot_bytes_peak", &Report::gradient_slot_bytes_peak)
      .def_readonly("reduces", &Report::reduces)
      .def_readonly("reduces_under_way_peak", &Report::reduces_under_way_peak)
      .def_readonly("hook", &Report::hook)
      .def_readonly("hook_bytes", &Report::hook_bytes)
      .def("to_text", [](const Report& report) { return to_text(report); })
      .def("to_json", [](const Report& report) { return to_json(report); });
}

}  // namespace

void bind_replicate(py::module_& module) {
  bind_options(module);
  using Self = DistributedDataParallel;
  py::class_<Self> replicated(
      module, "ReplicatedModule", DestroyedWithoutGil());
  bind_join(replicated);
  replicated.def("named_parameters", &Self::named_parameters, WithoutGil())
      .def(
          "no_sync",
          [](Self& self) {
            return make_scope([&self] { return self.no_sync(); });
          },
          py::keep_alive<0, 1>())
      .def("set_hook", &Self::set_hook, WithoutGil())
      .def("average_parameters", &Self::average_parameters, WithoutGil())
      .def("report", &Self::report, WithoutGil())
      .def("close", &Self::close, WithoutGil());
  module.def(
      "replicate",
      [](const ModuleTree& tree, const Mesh& mesh,
         const ReplicateOptions& options) {
        return replicate(*tree.root, mesh, options);
      },
      py::arg("tree"), py::arg("mesh"), py::arg("options"),
      py::keep_alive<0, 1>(), WithoutGil());
}

}  // namespace sherd::python
