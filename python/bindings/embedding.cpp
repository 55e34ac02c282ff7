// SPDX-License-Identifier: Apache-2.0
//
// What connects sherd to the interpreter: exceptions in both directions, signals in waits, and the
// brackets around backwards and forwards of functions.
#include <pthread.h>
#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <sherd/autograd/touch.h>
#include <sherd/base/run_main.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include "bindings.h"

namespace sherd::python {
namespace {

// The class of sherd/errors.py for a code.
const char* class_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgumentError";
    case ErrorCode::kFailedPrecondition:
      return "FailedPreconditionError";
    case ErrorCode::kPeerLost:
      return "PeerLostError";
    case ErrorCode::kPeerMismatch:
      return "PeerMismatchError";
    case ErrorCode::kDeadlineExceeded:
      return "DeadlineExceededError";
    case ErrorCode::kUnavailable:
      return "UnavailableError";
    case ErrorCode::kAborted:
      return "AbortedError";
  }
  return "Error";
}

bool is_running() {
  return Py_IsInitialized() != 0
#if PY_VERSION_HEX >= 0x030d0000
      && Py_IsFinalizing() == 0;
#else
      && _Py_IsFinalizing() == 0;
#endif
}

// What a signal's handler has raised while its thread waited in sherd. With the interpreter's lock.
class RaisedBySignal {
 public:
  // Takes the exception out of the interpreter, and drops an earlier one.
  void keep() {
    Py_CLEAR(type_);
    Py_CLEAR(value_);
    Py_CLEAR(traceback_);
    PyErr_Fetch(&type_, &value_, &traceback_);
  }
  // Puts it back; false where there is none.
  bool restore() {
    if (!is_kept()) {
      return false;
    }
    PyErr_Restore(
        std::exchange(type_, nullptr), std::exchange(value_, nullptr),
        std::exchange(traceback_, nullptr));
    return true;
  }
  bool is_kept() const { return type_ != nullptr; }

 private:
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* traceback_ = nullptr;
};

RaisedBySignal& raised_by_signal() {
  static RaisedBySignal raised;
  return raised;
}

// The one thread on which Python runs handlers of signals.
bool on_main_thread() {
  static const auto main = py::module_::import("threading")
                               .attr("main_thread")()
                               .attr("ident")
                               .cast<unsigned long>();
  return static_cast<unsigned long>(::pthread_self()) == main;
}

// Handlers may call Python, but no object of a model may die here, whose locks are held.
class WithoutCollection {
 public:
  WithoutCollection() : was_enabled_(PyGC_Disable() != 0) {}
  ~WithoutCollection() {
    if (was_enabled_) {
      PyGC_Enable();
    }
  }
  WithoutCollection(const WithoutCollection&) = delete;
  WithoutCollection& operator=(const WithoutCollection&) = delete;

 private:
  const bool was_enabled_;
};

bool handlers_have_raised() {
  const WithoutCollection keep_all;
  return PyErr_CheckSignals() != 0;
}

bool signal_has_raised() {
  if (!is_running() || !on_main_thread()) {
    return false;
  }
  const py::gil_scoped_acquire locked;
  if (handlers_have_raised()) {
    raised_by_signal().keep();
  }
  // One that an earlier wait has kept ends this one, where that wait has told nobody.
  return raised_by_signal().is_kept();
}

// What a signal has raised comes before the failure that it has caused.
void raise(const Error& error) {
  if (on_main_thread() && raised_by_signal().restore()) {
    return;
  }
  const auto type =
      py::module_::import("sherd.errors").attr(class_of(error.code()));
  PyErr_SetString(type.ptr(), error.what());
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) {
      std::rethrow_exception(std::move(thrown));
    }
  } catch (const Error& error) {
    raise(error);
  } catch (python_error& error) {
    error.restore();  // What a hook of a slice has raised.
  }
}

// PyTorch makes a RuntimeError of what it does not know, but passes on what Python has raised.
void throw_as_python(const Error& error) {
  if (!is_running()) {
    return;
  }
  const py::gil_scoped_acquire locked;
  raise(error);
  python_error raised;
  raised.persist();
  throw raised;
}

// Whether autograd.Function makes a node of them: a gradient is wanted of some argument.
bool makes_node(const py::args& arguments) {
  return at::GradMode::is_enabled() &&
      std::any_of(
             arguments.begin(), arguments.end(),
             [](const py::handle& argument) {
               return THPVariable_Check(argument.ptr()) &&
                   THPVariable_Unpack(argument.ptr()).requires_grad();
             });
}

// The method apply() of `base`, a base class of autograd.Function.
py::object apply_function(
    const py::object& base,
    const py::object& function,
    const py::args& arguments,
    const py::kwargs& named) {
  const py::object apply =
      py::handle(reinterpret_cast<PyObject*>(&PySuper_Type))(base, function)
          .attr("apply");
  std::optional<FunctionForward> forward;
  if (makes_node(arguments)) {
    forward.emplace();
  }
  return apply(*arguments, **named);
}

}  // namespace

OutsideHandlers::OutsideHandlers() {
  if (in_interrupt_check()) {
    throw Error(
        "[python] expected calls of sherd outside handlers of signals, found "
        "one in a handler that "
        "runs while this rank waits in sherd, whose locks it would wait for; "
        "set a flag there and "
        "look at it after the step",
        ErrorCode::kFailedPrecondition);
  }
}

void bind_embedding(py::module_& module) {
  (void)on_main_thread();
  py::register_exception_translator(&translate);
  set_error_translator(&throw_as_python);
  set_interrupt_check(&signal_has_raised);
  module.def("forbid_after_fork", [](const std::vector<py::object>& kept) {
    for (auto object : kept) {
      object
          .release();  // Their threads, which they would wait for, are not here.
    }
    forbid_after_fork();
  });
  // A method of C++, since torch.compile would trace one of Python.
  module.def("bracket_functions", [](const py::object& base) {
    const py::cpp_function apply([base](
                                     const py::object& function,
                                     const py::args& arguments,
                                     const py::kwargs& named) {
      return apply_function(base, function, arguments, named);
    });
    base.attr("apply") =
        py::handle(reinterpret_cast<PyObject*>(&PyClassMethod_Type))(apply);
  });
  ForeignBackward().end(nullptr);  // From now on forwards wait for brackets.
  py::class_<ForeignBackward>(module, "Backward")
      .def(py::init())
      .def(
          "end",
          [](ForeignBackward& backward, const std::optional<std::string>& why) {
            backward.end(
                why ? std::make_exception_ptr(std::runtime_error(*why))
                    : std::exception_ptr());
          },
          py::call_guard<py::gil_scoped_release>());
}

}  // namespace sherd::python
