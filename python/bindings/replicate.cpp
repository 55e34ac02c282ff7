// SPDX-License-Identifier: Apache-2.0
#include <sherd/ddp/replicate.h>
#include <torch/nn/module.h>
#include "bindings.h"
#include "scope.h"

namespace sherd::python {
namespace {

// A handle and the tree that it was made of, which must live as long.
struct ReplicatedModule {
  ModuleTree tree;
  DistributedDataParallel ddp;
};

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
  py::class_<ReplicateReport>(module, "ReplicateReport")
      .def_readonly("world_size", &ReplicateReport::world_size)
      .def_readonly("exchange", &ReplicateReport::exchange)
      .def_readonly("parameters", &ReplicateReport::parameters)
      .def_readonly("parameter_bytes", &ReplicateReport::parameter_bytes)
      .def_readonly("buckets", &ReplicateReport::buckets)
      .def_readonly("bucket_bytes", &ReplicateReport::bucket_bytes)
      .def_readonly("backwards", &ReplicateReport::backwards)
      .def_readonly("unused", &ReplicateReport::unused)
      .def_readonly("same_graph", &ReplicateReport::same_graph)
      .def_readonly("gradient_bytes", &ReplicateReport::gradient_bytes)
      .def_readonly(
          "gradient_slot_bytes_peak",
          &ReplicateReport::gradient_slot_bytes_peak)
      .def_readonly("reduces", &ReplicateReport::reduces)
      .def_readonly(
          "reduces_under_way_peak", &ReplicateReport::reduces_under_way_peak)
      .def_readonly("hook", &ReplicateReport::hook)
      .def_readonly("hook_bytes", &ReplicateReport::hook_bytes)
      .def(
          "to_text",
          [](const ReplicateReport& report) { return to_text(report); })
      .def("to_json", [](const ReplicateReport& report) {
        return to_json(report);
      });
}

}  // namespace

void bind_replicate(py::module_& module) {
  bind_options(module);
  using Self = ReplicatedModule;
  py::class_<Self, Owned<Self>> replicated(module, "ReplicatedModule");
  bind_join(replicated, [](Self& self) -> auto& { return self.ddp; });
  replicated
      .def(
          "named_parameters",
          [](const Self& self) { return self.ddp.named_parameters(); },
          WithoutGil())
      .def(
          "no_sync",
          [](Self& self) {
            return make_scope([&self] { return self.ddp.no_sync(); });
          },
          py::keep_alive<0, 1>())
      .def(
          "set_hook",
          [](Self& self, const CommHookPtr& hook) { self.ddp.set_hook(hook); },
          WithoutGil())
      .def(
          "average_parameters",
          [](Self& self) { self.ddp.average_parameters(); }, WithoutGil())
      .def(
          "report", [](const Self& self) { return self.ddp.report(); },
          WithoutGil())
      .def("close", [](Self& self) { self.ddp.close(); }, WithoutGil());
  module.def(
      "replicate",
      [](const ModuleTree& tree, const Mesh& mesh,
         const ReplicateOptions& options) {
        auto ddp = replicate(*tree.root, mesh, options);
        return own(Self{tree, std::move(ddp)});
      },
      py::arg("tree"), py::arg("mesh"), py::arg("options"), WithoutGil());
}

}  // namespace sherd::python
