// SPDX-License-Identifier: Apache-2.0
#include "scope.h"

namespace sherd::python {

void bind_scopes(py::module_& module) {
  py::class_<Scope>(module, "Scope")
      .def("__enter__", &Scope::enter, WithoutGil())
      .def(
          "__exit__",
          [](Scope& scope, const py::object& type, const py::args&) {
            const bool failed = !type.is_none();
            const py::gil_scoped_release released;
            scope.exit(failed);
          });
}

}  // namespace sherd::python
