// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <sherd/world/world.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "bindings.h"

namespace sherd::python {
namespace {

void bind_options(py::module_& module) {
  py::class_<WorldOptions> options(module, "WorldOptions");
  options.def(py::init())
      .def_readwrite("network_interface", &WorldOptions::network_interface)
      .def_readwrite("share_connections", &WorldOptions::share_connections);
  bind_seconds<&WorldOptions::deadline>(options, "deadline_s");
  bind_seconds<&WorldOptions::rendezvous_deadline>(
      options, "rendezvous_deadline_s");
}

}  // namespace

void bind_world(py::module_& module) {
  bind_options(module);
  py::class_<World>(module, "World", DestroyedWithoutGil())
      .def_static(
          "from_environment", &World::from_environment, py::arg("options"),
          WithoutGil())
      .def_static(
          "from_store", &World::from_store, py::arg("store"), py::arg("rank"),
          py::arg("size"), py::arg("options"), WithoutGil())
      .def_static("single", &World::single)
      .def_property_readonly("rank", &World::rank)
      .def_property_readonly("size", &World::size)
      .def_property_readonly("local_rank", &World::local_rank)
      .def_property_readonly("local_size", &World::local_size)
      .def("barrier", &World::barrier, WithoutGil())
      .def("all_gather", &World::all_gather, py::arg("numbers"), WithoutGil())
      .def("broadcast", &World::broadcast, py::arg("tensors"), WithoutGil())
      .def("subset", &World::subset, py::arg("ranks"), WithoutGil())
      // python/sherd/world.py makes close() of it.
      .def("end", &World::close, WithoutGil())
      // Whether they stand for the same job.
      .def(
          "__eq__",
          [](const World& one, const World& other) {
            return one.impl() == other.impl();
          },
          py::is_operator())
      .def("__hash__", [](const World& world) {
        return std::hash<const void*>()(world.impl().get());
      });
  py::class_<Mesh>(module, "Mesh")
      .def(
          py::init([](const World& world, int replicate, int shard) {
            return Mesh(world, {.replicate = replicate, .shard = shard});
          }),
          py::arg("world"), py::arg("replicate") = 1, py::arg("shard") = 0)
      .def_property_readonly("world", &Mesh::world)
      .def_property_readonly("replicate_size", &Mesh::replicate_size)
      .def_property_readonly("shard_size", &Mesh::shard_size)
      .def_property_readonly("replicate_index", &Mesh::replicate_index)
      .def_property_readonly("shard_index", &Mesh::shard_index);
}

}  // namespace sherd::python
