// SPDX-License-Identifier: Apache-2.0
//
// The extension sherd._core.
#include "bindings.h"

PYBIND11_MODULE(_core, module) {
  namespace py = pybind11;
  namespace python = sherd::python;
  py::module_::import("torch");  // Tensors and stores are its types.
  python::bind_embedding(module);
  python::bind_scopes(module);
  python::bind_module_tree(module);
  python::bind_world(module);
  python::bind_fully_shard(module);
  python::bind_hooks(module);
  python::bind_replicate(module);
  python::bind_optimizers(module);
  python::bind_state(module);
  python::bind_ft(module);
}
