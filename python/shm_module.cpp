// SPDX-License-Identifier: Apache-2.0
//
// The part of package sherd_shm that is C++: makes a backend.
#include <chrono>
#include <utility>
#include <vector>
#include <sherd/comm/shm_backend/make_backend.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

namespace {

namespace py = pybind11;

c10::intrusive_ptr<c10d::Backend> create(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    double timeout_seconds,
    std::vector<int> names,
    bool single_copy) {
  sherd::ShmGroupOptions options;
  options.timeout = std::chrono::milliseconds(
      static_cast<std::int64_t>(timeout_seconds * 1e3));
  options.names = std::move(names);
  options.single_copy = single_copy;
  return sherd::make_shm_backend(store, rank, size, options);
}

}  // namespace

PYBIND11_MODULE(_shm, module) {
  py::module_::import("torch");  // Backend and Store are its types.
  // Others may need the interpreter to join.
  module.def(
      "create", &create, py::arg("store"), py::arg("rank"), py::arg("size"),
      py::arg("timeout_seconds"), py::arg("names"), py::arg("single_copy"),
      py::call_guard<py::gil_scoped_release>());
}
