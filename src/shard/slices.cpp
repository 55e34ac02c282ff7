// SPDX-License-Identifier: Apache-2.0
#include "shard/slices.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>

#include "base/check.h"

namespace sherd::shard {
namespace {

plan::ParameterSlice whole_parameter(
    const plan::FlatLayout& layout, int position) {
  const auto p = static_cast<std::size_t>(position);
  const auto numel = layout.numels[p];
  return {position, {0, numel}, {layout.offsets[p], layout.offsets[p] + numel}};
}

}  // namespace

Slices::Slices(
    const ModelUnits& model,
    exchange::Exchange& exchange,
    int rank,
    bool owner_of_all)
    : model_(model), by_unit_(model.units.size()) {
  const c10::InferenceMode off(false);
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    const auto& parameter = model.parameters[p];
    const auto unit = static_cast<std::size_t>(parameter.unit);
    const auto& flat =
        model.units[unit].flats[static_cast<std::size_t>(parameter.flat)];
    const auto part = owner_of_all
        ? whole_parameter(flat.layout, parameter.position)
        : plan::parameter_slice(flat.layout, parameter.position, rank);
    parts_.push_back({part.in_parameter.begin, -1});
    if (part.in_parameter.empty()) {
      continue;
    }
    const auto memory = exchange.shard_memory(parameter.unit, parameter.flat);
    // variable_data(): no view in autograd's eyes; optimizers detach_() gradients
    // in place, which views refuse.
    const auto view = [&](const at::Tensor& of) {
      return of.narrow(0, part.in_shard.begin, part.in_shard.numel())
          .variable_data();
    };
    Slice slice;
    slice.name = parameter.name;
    slice.tensor = view(memory.shard);
    slice.tensor.set_requires_grad(flat.trainable);
    slice.parameter = static_cast<int>(p);
    if (flat.trainable) {
      slice.gradient = view(memory.gradient);
    }
    parts_.back().slice = static_cast<int>(slices_.size());
    by_unit_[unit].push_back(static_cast<int>(slices_.size()));
    slices_.push_back(std::move(slice));
  }
}

std::vector<at::Tensor> Slices::tensors() const {
  std::vector<at::Tensor> tensors;
  for (const auto& slice : slices_) {
    tensors.push_back(slice.tensor);
  }
  return tensors;
}

void Slices::take_from(int parameter, const at::Tensor& full) {
  const auto& part = parts_[static_cast<std::size_t>(parameter)];
  if (part.slice < 0) {
    return;
  }
  const at::NoGradGuard no_grad;
  auto& slice = slices_[static_cast<std::size_t>(part.slice)].tensor;
  slice.detach().copy_(
      full.detach().reshape({-1}).narrow(0, part.begin, slice.numel()));
}

void Slices::take_changes(
    int parameter, const at::Tensor& full, const at::Tensor& shown) {
  const auto& part = parts_[static_cast<std::size_t>(parameter)];
  if (part.slice < 0) {
    return;
  }
  const at::NoGradGuard no_grad;
  const auto shard =
      slices_[static_cast<std::size_t>(part.slice)].tensor.detach();
  const auto mine = [&](const at::Tensor& whole) {
    return whole.detach().reshape({-1}).narrow(0, part.begin, shard.numel());
  };
  const auto now = mine(full);
  const auto seen = mine(shown);
  const auto rest = at::where(
      seen.ne(shard.to(seen.scalar_type())), seen.to(shard.scalar_type()),
      shard);
  shard.copy_(at::where(now.ne(shard), now, rest));
}

std::vector<bool> Slices::accumulation(UnitId unit) {
  const at::NoGradGuard no_grad;
  const auto u = static_cast<std::size_t>(unit);
  std::vector<bool> any(model_.units[u].flats.size(), false);
  const auto flat_of = [&](const Slice& slice) {
    return static_cast<std::size_t>(
        model_.parameters[static_cast<std::size_t>(slice.parameter)].flat);
  };
  for (const int s : by_unit_[u]) {
    const auto& slice = slices_[static_cast<std::size_t>(s)];
    if (slice.tensor.grad().defined()) {
      any[flat_of(slice)] = true;
    }
  }
  for (const int s : by_unit_[u]) {
    auto& slice = slices_[static_cast<std::size_t>(s)];
    if (!slice.gradient.defined() || !any[flat_of(slice)]) {
      continue;
    }
    auto& grad = slice.tensor.mutable_grad();
    if (!grad.defined()) {
      slice.gradient.zero_();
    } else if (grad.const_data_ptr() != slice.gradient.const_data_ptr()) {
      slice.gradient.copy_(grad.reshape({-1}));  // Set by the user.
      grad = slice.gradient;
    }
  }
  return any;
}

void Slices::set_gradients(UnitId unit, const std::vector<bool>& used) {
  for (const int s : by_unit_[static_cast<std::size_t>(unit)]) {
    auto& slice = slices_[static_cast<std::size_t>(s)];
    const int trainable =
        model_.parameters[static_cast<std::size_t>(slice.parameter)].trainable;
    if (trainable >= 0 && used[static_cast<std::size_t>(trainable)]) {
      slice.tensor.mutable_grad() = slice.gradient;
    }
  }
}

void Slices::clear_gradients() {
  for (auto& slice : slices_) {
    slice.tensor.mutable_grad().reset();
  }
}

}  // namespace sherd::shard
