// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <functional>
#include <pybind11/chrono.h>
#include <sherd/world/world.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "bindings.h"

namespace sherd::python {
namespace {

WorldOptions options_of(double deadline_s, double rendezvous_deadline_s) {
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
  };
  return {
      .deadline = milliseconds(deadline_s),
      .rendezvous_deadline = milliseconds(rendezvous_deadline_s)};
}

}  // namespace

void bind_world(py::module_& module) {
  py::class_<World, Owned<World>>(module, "World")
      .def_static(
          "from_environment",
          [](double deadline_s, double rendezvous_deadline_s) {
            return World::from_environment(
                options_of(deadline_s, rendezvous_deadline_s));
          },
          py::arg("deadline_s"), py::arg("rendezvous_deadline_s"), WithoutGil())
      .def_static(
          "from_store",
          [](c10::intrusive_ptr<c10d::Store> store, int rank, int size,
             double deadline_s, double rendezvous_deadline_s) {
            return World::from_store(
                std::move(store), rank, size,
                options_of(deadline_s, rendezvous_deadline_s));
          },
          py::arg("store"), py::arg("rank"), py::arg("size"),
          py::arg("deadline_s"), py::arg("rendezvous_deadline_s"), WithoutGil())
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
