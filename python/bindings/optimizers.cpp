// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>
#include <pybind11/functional.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/grad_scaler.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/sgd.h>
#include <sherd/optim/weight_average.h>
#include "bindings.h"

namespace sherd::python {
namespace {

// What all of them have.
template <typename Optimizer, typename Options>
void bind_optimizer(py::module_& module, const char* name) {
  py::class_<Optimizer>(module, name)
      .def(py::init<NamedParameters, const Options&>(), WithoutGil())
      .def("step", &Optimizer::step, WithoutGil())
      .def("zero_grad", &Optimizer::zero_grad, WithoutGil())
      .def_property(
          "lr", &Optimizer::learning_rate, &Optimizer::set_learning_rate);
}

void bind_options(py::module_& module) {
  py::class_<ParameterGroup>(module, "ParameterGroup")
      .def(py::init())
      .def_readwrite("names", &ParameterGroup::names)
      .def_readwrite(
          "learning_rate_scale", &ParameterGroup::learning_rate_scale)
      .def_readwrite("weight_decay", &ParameterGroup::weight_decay);
  py::class_<AdamWOptions>(module, "AdamWOptions")
      .def(py::init())
      .def_readwrite("learning_rate", &AdamWOptions::learning_rate)
      .def_readwrite("beta1", &AdamWOptions::beta1)
      .def_readwrite("beta2", &AdamWOptions::beta2)
      .def_readwrite("epsilon", &AdamWOptions::epsilon)
      .def_readwrite("weight_decay", &AdamWOptions::weight_decay)
      .def_readwrite("groups", &AdamWOptions::groups)
      .def_readwrite("in_backward", &AdamWOptions::in_backward);
  py::class_<SgdOptions>(module, "SGDOptions")
      .def(py::init())
      .def_readwrite("learning_rate", &SgdOptions::learning_rate)
      .def_readwrite("momentum", &SgdOptions::momentum)
      .def_readwrite("nesterov", &SgdOptions::nesterov)
      .def_readwrite("weight_decay", &SgdOptions::weight_decay)
      .def_readwrite("groups", &SgdOptions::groups);
  py::enum_<MuonScale>(module, "MuonScale")
      .value("original", MuonScale::kOriginal)
      .value("match_rms_adamw", MuonScale::kMatchRmsAdamW);
  py::class_<MuonOptions>(module, "MuonOptions")
      .def(py::init())
      .def_readwrite("learning_rate", &MuonOptions::learning_rate)
      .def_readwrite("momentum", &MuonOptions::momentum)
      .def_readwrite("nesterov", &MuonOptions::nesterov)
      .def_readwrite("weight_decay", &MuonOptions::weight_decay)
      .def_readwrite("scale", &MuonOptions::scale)
      .def_readwrite("coefficients", &MuonOptions::coefficients)
      .def_readwrite("iterations", &MuonOptions::iterations)
      .def_readwrite("epsilon", &MuonOptions::epsilon)
      .def_readwrite("iteration_dtype", &MuonOptions::iteration_dtype);
  py::class_<GradScalerOptions>(module, "GradScalerOptions")
      .def(py::init())
      .def_readwrite("init_scale", &GradScalerOptions::init_scale)
      .def_readwrite("growth_factor", &GradScalerOptions::growth_factor)
      .def_readwrite("backoff_factor", &GradScalerOptions::backoff_factor)
      .def_readwrite("growth_interval", &GradScalerOptions::growth_interval)
      .def_readwrite("uses_fp16", &GradScalerOptions::uses_fp16);
}

}  // namespace

void bind_optimizers(py::module_& module) {
  bind_options(module);
  bind_optimizer<AdamW, AdamWOptions>(module, "AdamW");
  bind_optimizer<Sgd, SgdOptions>(module, "SGD");
  bind_optimizer<Muon, MuonOptions>(module, "Muon");
  py::class_<GradScaler>(module, "GradScaler")
      .def(py::init<NamedParameters, const GradScalerOptions&>(), WithoutGil())
      .def("scale", &GradScaler::scale, WithoutGil())
      .def("unscale", &GradScaler::unscale, WithoutGil())
      // The function takes the interpreter's lock back.
      .def("step", &GradScaler::step_with, WithoutGil())
      .def("update", &GradScaler::update, WithoutGil())
      .def("get_scale", &GradScaler::get_scale)
      .def("state", &GradScaler::state);
  py::class_<WeightAverage>(module, "WeightAverage")
      .def(py::init<NamedParameters, double>(), WithoutGil())
      .def("update", &WeightAverage::update, WithoutGil())
      .def("reset", &WeightAverage::reset, WithoutGil())
      .def("swap", &WeightAverage::swap, WithoutGil())
      .def("tensors", [](const WeightAverage& average) {
        std::map<std::string, at::Tensor> tensors;
        for (const auto& item : average.averages().items) {
          tensors.emplace(item.name, item.slice);
        }
        return tensors;
      });
}

}  // namespace sherd::python
