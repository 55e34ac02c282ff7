// SPDX-License-Identifier: Apache-2.0
#include <pybind11/functional.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/grad_scaler.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/sgd.h>
#include "bindings.h"

namespace sherd::python {
namespace {

// Shell patterns, a factor of the learning rate, and a weight decay or None.
using Group =
    std::tuple<std::vector<std::string>, double, std::optional<double>>;

std::vector<ParameterGroup> groups_of(const std::vector<Group>& groups) {
  std::vector<ParameterGroup> result;
  for (const auto& [names, scale, weight_decay] : groups) {
    result.push_back(
        {.names = names,
         .learning_rate_scale = scale,
         .weight_decay = weight_decay});
  }
  return result;
}

// What all of them have.
template <typename Optimizer>
py::class_<Optimizer> bind_optimizer(py::module_& module, const char* name) {
  return py::class_<Optimizer>(module, name)
      .def("step", &Optimizer::step, WithoutGil())
      .def("zero_grad", &Optimizer::zero_grad, WithoutGil())
      .def_property(
          "lr", &Optimizer::learning_rate, &Optimizer::set_learning_rate);
}

void bind_grad_scaler(py::module_& module) {
  py::class_<GradScaler>(module, "GradScaler")
      .def(
          py::init([](const NamedParameters& parameters, double init_scale,
                      double growth_factor, double backoff_factor,
                      int growth_interval, bool uses_fp16) {
            return std::make_unique<GradScaler>(
                parameters,
                GradScalerOptions{
                    .init_scale = init_scale,
                    .growth_factor = growth_factor,
                    .backoff_factor = backoff_factor,
                    .growth_interval = growth_interval,
                    .uses_fp16 = uses_fp16});
          }),
          py::arg("parameters"), py::arg("init_scale"),
          py::arg("growth_factor"), py::arg("backoff_factor"),
          py::arg("growth_interval"), py::arg("uses_fp16"), WithoutGil())
      .def("scale", &GradScaler::scale, WithoutGil())
      .def("unscale", &GradScaler::unscale, WithoutGil())
      // The function takes the interpreter's lock back.
      .def("step", &GradScaler::step_with, WithoutGil())
      .def("update", &GradScaler::update, WithoutGil())
      .def("get_scale", &GradScaler::get_scale)
      .def("state", &GradScaler::state);
}

}  // namespace

void bind_optimizers(py::module_& module) {
  bind_grad_scaler(module);
  bind_optimizer<AdamW>(module, "AdamW")
      .def(
          py::init([](const NamedParameters& parameters, double lr,
                      std::pair<double, double> betas, double eps,
                      double weight_decay, const std::vector<Group>& groups,
                      bool in_backward) {
            return std::make_unique<AdamW>(
                parameters,
                AdamWOptions{
                    .learning_rate = lr,
                    .beta1 = betas.first,
                    .beta2 = betas.second,
                    .epsilon = eps,
                    .weight_decay = weight_decay,
                    .groups = groups_of(groups),
                    .in_backward = in_backward});
          }),
          py::arg("parameters"), py::arg("lr"), py::arg("betas"),
          py::arg("eps"), py::arg("weight_decay"), py::arg("groups"),
          py::arg("in_backward"), WithoutGil());
  bind_optimizer<Sgd>(module, "SGD")
      .def(
          py::init([](const NamedParameters& parameters, double lr,
                      double momentum, bool nesterov, double weight_decay,
                      const std::vector<Group>& groups) {
            return std::make_unique<Sgd>(
                parameters,
                SgdOptions{
                    .learning_rate = lr,
                    .momentum = momentum,
                    .nesterov = nesterov,
                    .weight_decay = weight_decay,
                    .groups = groups_of(groups)});
          }),
          py::arg("parameters"), py::arg("lr"), py::arg("momentum"),
          py::arg("nesterov"), py::arg("weight_decay"), py::arg("groups"),
          WithoutGil());
  bind_optimizer<Muon>(module, "Muon")
      .def(
          py::init([](const NamedParameters& parameters, double lr,
                      double momentum, bool nesterov, double weight_decay) {
            return std::make_unique<Muon>(
                parameters,
                MuonOptions{
                    .learning_rate = lr,
                    .momentum = momentum,
                    .nesterov = nesterov,
                    .weight_decay = weight_decay});
          }),
          py::arg("parameters"), py::arg("lr"), py::arg("momentum"),
          py::arg("nesterov"), py::arg("weight_decay"), WithoutGil());
}

}  // namespace sherd::python
