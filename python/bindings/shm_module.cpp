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

// The backends of this process that somebody still holds. c10d holds them in
// C++, so their Python objects come and go. Thread rule: any thread.
class OpenBackends : public std::enable_shared_from_this<OpenBackends> {
 public:
  BackendPtr create(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      double timeout_seconds,
      std::vector<int> names,
      bool single_copy,
      bool enable_reconfigure);
  // Without the interpreter's lock, which callbacks of works may need.
  void shutdown();

 private:
  // A forked child has the objects, but neither their threads nor their ranks.
  bool in_child() const { return ::getpid() != process_; }
  void add(const BackendPtr& backend);
  void end_unlocked(const std::function<void()>& block) const;

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<c10d::Backend>> open_;
};

BackendPtr OpenBackends::create(
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
  options.unlocked = [self = shared_from_this()](const auto& block) {
    self->end_unlocked(block);
  };
  options.made = [self = shared_from_this()](const BackendPtr& backend) {
    self->add(backend);
  };
  return sherd::make_shm_backend(store, rank, size, options);
}

void OpenBackends::add(const BackendPtr& backend) {
  const std::lock_guard lock(mutex_);
  std::erase_if(open_, [](const auto& other) { return other.expired(); });
  open_.emplace_back(backend);
}

void OpenBackends::end_unlocked(const std::function<void()>& block) const {
  if (in_child()) {
    return;
  }
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    const py::gil_scoped_release released;
    block();
  } else {
    block();
  }
}

void OpenBackends::shutdown() {
  if (in_child()) {
    return;
  }
  std::vector<BackendPtr> open;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& backend : open_) {
      if (auto held = backend.lock(); held.defined()) {
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
