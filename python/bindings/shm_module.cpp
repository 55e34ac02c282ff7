// SPDX-License-Identifier: Apache-2.0
//
// The part of the Python module sherd.shm that is C++: makes backends, and ends those that
// are open when Python exits.
#include <unistd.h>
#include <chrono>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>
#include <sherd/c10d_shm.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

namespace {

namespace py = pybind11;

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using WeakBackendPtr = c10::weak_intrusive_ptr<c10d::Backend>;

// Runs `block` without the interpreter's lock, which callbacks of works may
// need.
void run_unlocked(const std::function<void()>& block) {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    const py::gil_scoped_release released;
    block();
  } else {
    block();
  }
}

// The backends that somebody still holds. c10d holds them in C++, so their
// Python objects come and go. A child that is forked after one was made has the
// object, but neither its threads nor its rank, and does not end it. Thread
// rule: any thread.
class OpenBackends : public std::enable_shared_from_this<OpenBackends> {
 public:
  BackendPtr create(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      double timeout_seconds,
      std::vector<int> names,
      bool single_copy,
      bool enable_reconfigure) {
    sherd::ShmGroupOptions options;
    options.timeout = std::chrono::milliseconds(
        static_cast<std::int64_t>(timeout_seconds * 1e3));
    options.names = std::move(names);
    options.single_copy = single_copy;
    options.enable_reconfigure = enable_reconfigure;
    options.unlocked = [process = ::getpid()](const auto& block) {
      if (process == ::getpid()) {
        run_unlocked(block);
      }
    };
    options.made = [self = shared_from_this()](const BackendPtr& backend) {
      self->add(backend);
    };
    return sherd::make_shm_backend(store, rank, size, options);
  }

  // Without the interpreter's lock, which callbacks of works may need.
  void shutdown() {
    std::vector<BackendPtr> open;
    {
      const std::lock_guard lock(mutex_);
      for (const Made& made : open_) {
        if (made.process != ::getpid()) {
          continue;
        }
        if (auto held = made.backend.lock(); held.defined()) {
          open.push_back(std::move(held));
        }
      }
    }
    for (const auto& backend : open) {
      try {
        backend->shutdown();
      } catch (const std::exception& error) {
        std::cerr << "sherd.shm: " << error.what() << std::endl;
      }
    }
  }

 private:
  struct Made {
    pid_t process;
    WeakBackendPtr backend;
  };

  void add(const BackendPtr& backend) {
    const std::lock_guard lock(mutex_);
    std::erase_if(
        open_, [](const Made& other) { return other.backend.expired(); });
    open_.push_back(
        {.process = ::getpid(), .backend = WeakBackendPtr(backend)});
  }

  std::mutex mutex_;
  std::vector<Made> open_;
};

}  // namespace

PYBIND11_MODULE(_shm, module) {
  py::module_::import("torch");  // Backend and Store are its types.
  py::class_<OpenBackends, std::shared_ptr<OpenBackends>>(
      module, "OpenBackends")
      .def(py::init<>())
      // Others may need the interpreter to join.
      .def(
          "create", &OpenBackends::create, py::arg("store"), py::arg("rank"),
          py::arg("size"), py::arg("timeout_seconds"), py::arg("names"),
          py::arg("single_copy"), py::arg("enable_reconfigure") = false,
          py::call_guard<py::gil_scoped_release>())
      .def(
          "shutdown", &OpenBackends::shutdown,
          py::call_guard<py::gil_scoped_release>());
}
