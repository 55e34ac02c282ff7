// SPDX-License-Identifier: Apache-2.0
// The state of LibTorch's own optimizers, as named tensors.
#include <set>
#include <utility>
#include <vector>

#include <sherd/ckpt/checkpoint.h>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "base/check.h"

namespace sherd {
namespace {

namespace optim = torch::optim;

// The optimizer state of one parameter, as tensors that share its memory, which stays in place;
// state that does not exist yet is made.
struct OptimizerStateTensors {
  void add(const char* key, at::Tensor& tensor) {
    if (!tensor.defined()) {
      tensor = at::zeros_like(parameter.slice);
    }
    into.push_back({parameter.name, key, tensor.detach()});
  }

  // What the last one added is before the first update.
  void reset_by(std::function<void()> reset) {
    into.back().reset = std::move(reset);
  }

  void add(const char* key, std::int64_t& number) {
    into.push_back(
        {parameter.name, key,
         at::from_blob(&number, {}, c10::ScalarType::Long)});
  }

  const NamedParameter& parameter;
  std::vector<OptimizerTensor>& into;
};

template <typename State>
State& made(std::unique_ptr<optim::OptimizerParamState>& state) {
  if (state == nullptr) {
    state = std::make_unique<State>();
  }
  return static_cast<State&>(*state);
}

using StatePtr = std::unique_ptr<optim::OptimizerParamState>;

template <typename State>
void add_adam(StatePtr& found, bool amsgrad, OptimizerStateTensors& fields) {
  auto& state = made<State>(found);
  fields.add("step", state.step());
  fields.add("exp_avg", state.exp_avg());
  fields.add("exp_avg_sq", state.exp_avg_sq());
  if (amsgrad) {
    fields.add("max_exp_avg_sq", state.max_exp_avg_sq());
  }
}

template <typename Options>
const Options* as(const optim::OptimizerOptions& given) {
  return dynamic_cast<const Options*>(&given);
}

bool is_known(const optim::OptimizerOptions& given) {
  return as<optim::AdamWOptions>(given) || as<optim::AdamOptions>(given) ||
      as<optim::SGDOptions>(given) || as<optim::RMSpropOptions>(given) ||
      as<optim::AdagradOptions>(given);
}

// `forget` removes the state, as before the first update.
void add_fields(
    const optim::OptimizerOptions& given,
    StatePtr& found,
    const std::function<void()>& forget,
    OptimizerStateTensors& fields) {
  if (const auto* adamw = as<optim::AdamWOptions>(given)) {
    add_adam<optim::AdamWParamState>(found, adamw->amsgrad(), fields);
  } else if (const auto* adam = as<optim::AdamOptions>(given)) {
    add_adam<optim::AdamParamState>(found, adam->amsgrad(), fields);
  } else if (const auto* sgd = as<optim::SGDOptions>(given)) {
    if (sgd->momentum() != 0.0) {
      fields.add(
          "momentum_buffer",
          made<optim::SGDParamState>(found).momentum_buffer());
      // The first update makes the buffer of the whole gradient, whatever the dampening.
      fields.reset_by(forget);
    }
  } else if (const auto* rms = as<optim::RMSpropOptions>(given)) {
    auto& state = made<optim::RMSpropParamState>(found);
    fields.add("step", state.step());
    fields.add("square_avg", state.square_avg());
    if (rms->momentum() != 0.0) {
      fields.add("momentum_buffer", state.momentum_buffer());
    }
    if (rms->centered()) {
      fields.add("grad_avg", state.grad_avg());
    }
  } else if (const auto* adagrad = as<optim::AdagradOptions>(given)) {
    auto& state = made<optim::AdagradParamState>(found);
    fields.add("step", state.step());
    fields.add("sum", state.sum());
    fields.reset_by(
        [sum = state.sum(), to = adagrad->initial_accumulator_value()] {
          sum.fill_(to);
        });
  }
}

std::vector<OptimizerTensor> tensors_of(
    optim::Optimizer& optimizer,
    const std::vector<NamedParameter>& parameters,
    const std::set<std::string>& also) {
  std::map<const void*, const NamedParameter*> by_tensor;
  for (const auto& parameter : parameters) {
    by_tensor.emplace(parameter.slice.unsafeGetTensorImpl(), &parameter);
  }
  std::vector<OptimizerTensor> tensors;
  for (auto& group : optimizer.param_groups()) {
    for (const auto& tensor : group.params()) {
      auto* key = tensor.unsafeGetTensorImpl();
      const auto named = by_tensor.find(key);
      SHERD_CHECK(
          named != by_tensor.end(),
          "[ckpt] the optimizer has a parameter of shape ", tensor.sizes(),
          " that is none of those it was added with; expected it to be made "
          "with the slices of named_parameters()");
      auto& states = optimizer.state();
      if (!also.contains(named->second->name) &&
          states.find(key) == states.end()) {
        continue;
      }
      OptimizerStateTensors fields{*named->second, tensors};
      add_fields(
          group.options(), states[key], [&states, key] { states.erase(key); },
          fields);
    }
  }
  return tensors;
}

}  // namespace

void CheckpointState::add(
    const std::string& section,
    torch::optim::Optimizer& optimizer,
    const NamedParameters& parameters) {
  for (auto& group : optimizer.param_groups()) {
    SHERD_CHECK(
        is_known(group.options()),
        "[ckpt] expected Adam, AdamW, SGD, RMSprop or Adagrad of torch::optim, "
        "or an optimizer of sherd, found another");
  }
  auto items = parameters.items;
  items.insert(
      items.end(), parameters.state_only.begin(), parameters.state_only.end());
  add_optimizer(
      section, parameters,
      [&optimizer,
       items = std::move(items)](const std::set<std::string>& also) {
        return tensors_of(optimizer, items, also);
      });
}

}  // namespace sherd
