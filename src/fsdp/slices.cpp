// SPDX-License-Identifier: Apache-2.0
#include "fsdp/slices.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include "autograd/gradient_hook.h"
#include "base/check.h"
#include "base/hash.h"

namespace sherd::fsdp {
namespace {

plan::ParameterSlice whole_parameter(
    const plan::FlatLayout& layout, int position) {
  const auto p = static_cast<std::size_t>(position);
  const auto numel = layout.numels[p];
  return {position, {0, numel}, {layout.offsets[p], layout.offsets[p] + numel}};
}

// The next reduction writes into the memory of a gradient that was cleared. Whoever still holds the
// tensor keeps its values, as after zero_grad() in plain PyTorch. variable_data(), as below.
void leave_to_holders(at::Tensor& gradient) {
  if (gradient.use_count() > 1) {
    const auto held = std::exchange(gradient, gradient.variable_data());
    held.set_data(held.clone());
  }
}

}  // namespace

Slices::Slices(
    const ModelUnits& model,
    exchange::Exchange& exchange,
    int rank,
    bool owner_of_all)
    : model_(model),
      exchange_(exchange),
      owner_of_all_(owner_of_all),
      by_unit_(model.units.size()),
      parameters_(model.units.size()),
      used_(model.parameters.size(), false) {
  const c10::InferenceMode off(false);
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    const auto& parameter = model.parameters[p];
    const auto unit = static_cast<std::size_t>(parameter.unit);
    parameters_[unit].push_back(static_cast<int>(p));
    const auto& flat = model.flat_of(parameter);
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
    slice.memory = slice.tensor.const_data_ptr();
    slice.tensor.set_requires_grad(!flat.starts_frozen);
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

void Slices::check_memory() const {
  for (const auto& slice : slices_) {
    SHERD_CHECK_AS(
        kFailedPrecondition, slice.tensor.const_data_ptr() == slice.memory,
        "[fsdp] this rank's slice of parameter ", slice.name,
        " was given other memory (set_data(), or .data = in Python), so that "
        "nothing written there would be trained; expected values that are "
        "copied into it: slice.copy_(values) under no_grad, then publish() on "
        "every rank");
  }
}

std::uint64_t Slices::versions() const {
  std::uint64_t sum = 0;
  for (const auto& slice : slices_) {
    sum += slice.tensor._version();
  }
  return sum;
}

std::int64_t Slices::shard_bytes(
    const std::function<bool(UnitId)>& frozen) const {
  std::int64_t bytes = 0;
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    for (std::size_t f = 0; f < model_.units[u].flats.size(); ++f) {
      const auto memory =
          exchange_.shard_memory(static_cast<UnitId>(u), static_cast<int>(f));
      const auto& flat = model_.units[u].flats[f];
      // No page is touched before the first gradient of a unit that starts frozen.
      const auto gradient_bytes =
          memory.gradient.defined() && !frozen(static_cast<UnitId>(u))
          ? memory.gradient.nbytes()
          : 0;
      const bool cast_is_kept =
          flat.is_cast() && memory.shard.device() == model_.device;
      const auto cast_bytes =
          cast_is_kept ? c10::elementSize(flat.unsharded_dtype()) : 0;
      bytes += static_cast<std::int64_t>(
          memory.shard.nbytes() + gradient_bytes +
          static_cast<std::size_t>(memory.shard.numel()) * cast_bytes);
    }
  }
  return bytes;
}

bool Slices::gradients_are_shared() const {
  return std::ranges::all_of(
      model_.parameters, [&](const ManagedParameter& parameter) {
        return parameter.trainable < 0 ||
            exchange_.shard_memory(parameter.unit, parameter.flat)
                .whole_gradient.defined();
      });
}

std::vector<WholeParameter> Slices::whole_parameters() const {
  std::vector<WholeParameter> whole;
  for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
    const auto& parameter = model_.parameters[p];
    const auto numel = parameter.tensor.numel();
    if (numel == 0) {
      continue;
    }
    auto& item = whole.emplace_back();
    item.name = parameter.name;
    item.shape = parameter.tensor.sizes().vec();
    item.slice_begin = parts_[p].begin;
    const auto memory = exchange_.shard_memory(parameter.unit, parameter.flat);
    const auto begin = model_.offset_of(parameter);
    item.options = memory.shard.options();
    if (memory.whole_gradient.defined()) {
      item.gradient =
          memory.whole_gradient.narrow(0, begin, numel).view(item.shape);
    }
    const auto& layout = model_.flat_of(parameter).layout;
    if (parameter.trainable >= 0 && !owner_of_all_ && layout.ranks() > 1) {
      for (const auto cut : layout.cuts) {
        item.cuts.push_back(std::clamp<std::int64_t>(cut - begin, 0, numel));
      }
    }
  }
  return whole;
}

void Slices::copy_from_full(int parameter, const at::Tensor& full) {
  if (const auto* slice = find(parameter)) {
    const at::NoGradGuard no_grad;
    slice->tensor.detach().copy_(part_of(parameter, full));
  }
}

void Slices::copy_changed_elements(
    int parameter, const at::Tensor& full, const at::Tensor& shown) {
  const auto* slice = find(parameter);
  if (slice == nullptr) {
    return;
  }
  const at::NoGradGuard no_grad;
  const auto shard = slice->tensor.detach();
  const auto now = part_of(parameter, full).to(shard.device());
  const auto seen = part_of(parameter, shown).to(shard.device());
  const auto rest = at::where(
      seen.ne(shard.to(seen.scalar_type())), seen.to(shard.scalar_type()),
      shard);
  shard.copy_(at::where(now.ne(shard), now, rest));
}

std::vector<bool> Slices::accumulation(UnitId unit) {
  const at::NoGradGuard no_grad;
  const auto u = static_cast<std::size_t>(unit);
  for (const int p : parameters_[u]) {
    used_[static_cast<std::size_t>(p)] =
        adds_up_ && used_[static_cast<std::size_t>(p)];
  }
  std::vector<bool> any(model_.units[u].flats.size(), false);
  const auto flat_of = [&](const Slice& slice) {
    return static_cast<std::size_t>(model_.parameter(slice.parameter).flat);
  };
  for (const int s : by_unit_[u]) {
    auto& slice = slices_[static_cast<std::size_t>(s)];
    if (slice.tensor.grad().defined()) {
      any[flat_of(slice)] = true;
    } else if (slice.gradient.defined()) {
      leave_to_holders(slice.gradient);
    }
  }
  for (const int s : by_unit_[u]) {
    auto& slice = slices_[static_cast<std::size_t>(s)];
    if (!slice.gradient.defined() || !any[flat_of(slice)] ||
        !slice.update.expired()) {
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
  for (const int p : parameters_[static_cast<std::size_t>(unit)]) {
    const int trainable = model_.parameter(p).trainable;
    if (trainable >= 0 && used[static_cast<std::size_t>(trainable)]) {
      used_[static_cast<std::size_t>(p)] = true;
    }
  }
  for (const int s : by_unit_[static_cast<std::size_t>(unit)]) {
    auto& slice = slices_[static_cast<std::size_t>(s)];
    const int trainable = model_.parameter(slice.parameter).trainable;
    if (trainable >= 0 && used[static_cast<std::size_t>(trainable)] &&
        slice.update.expired()) {
      slice.tensor.mutable_grad() = slice.gradient;
    }
  }
}

bool Slices::has_hooks() const {
  return std::ranges::any_of(slices_, [](const Slice& slice) {
    return autograd::has_post_accumulation_hook(slice.tensor);
  });
}

std::vector<at::Tensor> Slices::hooked() const {
  std::vector<at::Tensor> hooked;
  for (const auto& slice : slices_) {
    if (used_[static_cast<std::size_t>(slice.parameter)] &&
        autograd::has_post_accumulation_hook(slice.tensor)) {
      hooked.push_back(slice.tensor);
    }
  }
  return hooked;
}

std::shared_ptr<void> Slices::register_backward_update(BackwardUpdate given) {
  const auto update = std::make_shared<BackwardUpdate>(std::move(given));
  std::vector<Slice*> named;
  for (const auto& name : update->names) {
    const auto found = std::ranges::find(slices_, name, &Slice::name);
    SHERD_CHECK(
        found != slices_.end(), "[fsdp] an update in backward of ", name,
        ", of which this rank has no slice");
    SHERD_CHECK_AS(
        kFailedPrecondition, found->update.expired(), "[fsdp] parameter ", name,
        " is updated in backward by another optimizer already");
    named.push_back(&*found);
  }
  for (std::size_t i = 0; i < named.size(); ++i) {
    const auto& parameter = model_.parameter(named[i]->parameter);
    if (parameter.trainable >= 0 &&
        exchange::may_bypass_slot(
            model_.flat_of(parameter), parameter.position)) {
      named[i]->update = update;
      named[i]->update_index = i;
      named[i]->tensor.mutable_grad().reset();
    }
  }
  std::erase_if(updates_, [](const auto& each) { return each.expired(); });
  updates_.push_back(update);
  return update;
}

bool Slices::updates_in_backward() const {
  return std::ranges::any_of(
      updates_, [](const auto& update) { return !update.expired(); });
}

bool Slices::writes_in_backward() const {
  return std::ranges::any_of(updates_, [](const auto& each) {
    const auto update = each.lock();
    return update != nullptr && update->writes;
  });
}

std::vector<exchange::ReduceOptions::GradientSink> Slices::sinks(
    UnitId unit) const {
  std::vector<exchange::ReduceOptions::GradientSink> sinks;
  for (const int s : by_unit_[static_cast<std::size_t>(unit)]) {
    const auto& slice = slices_[static_cast<std::size_t>(s)];
    const auto update = slice.update.lock();
    if (update == nullptr) {
      continue;
    }
    const auto t =
        static_cast<std::size_t>(model_.parameter(slice.parameter).trainable);
    sinks.resize(std::max(sinks.size(), t + 1));
    sinks[t] = [update, index = slice.update_index,
                dtype = slice.tensor.scalar_type()](
                   std::int64_t begin, const at::Tensor& sum) {
      update->update(index, begin, sum.to(dtype));
    };
  }
  return sinks;
}

bool Slices::has_gradient(int parameter) const {
  return used_[static_cast<std::size_t>(parameter)] ||
      slice_has_gradient(parameter);
}

void Slices::remember_sample() {
  constexpr std::size_t kSlices = 16;
  std::vector<std::size_t> with_gradient;
  for (std::size_t s = 0; s < slices_.size(); ++s) {
    const auto& tensor = slices_[s].tensor;
    if (tensor.is_cpu() && tensor.grad().defined()) {
      with_gradient.push_back(s);
    }
  }
  const auto every = (with_gradient.size() + kSlices - 1) / kSlices;
  sampled_.clear();
  for (std::size_t i = 0; i < with_gradient.size(); i += every) {
    sampled_.push_back(with_gradient[i]);
  }
  sample_digest_ = digest_of_sample();
}

std::uint64_t Slices::digest_of_sample() const {
  constexpr std::int64_t kElements = 8;
  Hash64 hash;
  for (const auto s : sampled_) {
    const auto& tensor = slices_[s].tensor;
    const auto size = static_cast<std::int64_t>(tensor.element_size());
    const auto every = (tensor.numel() + kElements - 1) / kElements;
    const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
    for (std::int64_t i = 0; i < tensor.numel(); i += every) {
      hash.add(
          std::string_view(bytes + i * size, static_cast<std::size_t>(size)));
    }
  }
  return hash.value();
}

at::Tensor Slices::gradient_of(int parameter) const {
  const auto* slice = find(parameter);
  if (slice == nullptr) {
    return {};
  }
  const auto& gradient = slice->tensor.grad();
  const auto dtype =
      model_.flat_of(model_.parameter(parameter)).gradient_dtype();
  return gradient.defined()
      ? gradient.detach().reshape({-1}).to(at::kCPU, dtype).contiguous()
      : at::zeros({slice->tensor.numel()}, dtype);
}

bool Slices::any_gradient() const {
  return std::ranges::any_of(slices_, [](const Slice& slice) {
    return slice.tensor.grad().defined();
  });
}

bool Slices::slice_has_gradient(int parameter) const {
  const auto* slice = find(parameter);
  return slice != nullptr && slice->tensor.grad().defined();
}

at::Tensor Slices::part_of(int parameter, const at::Tensor& full) const {
  const auto* slice = find(parameter);
  return slice == nullptr
      ? at::Tensor()
      : full.detach().reshape({-1}).narrow(
            0, parts_[static_cast<std::size_t>(parameter)].begin,
            slice->tensor.numel());
}

void Slices::copy_changed_gradient(
    int parameter, const at::Tensor& now, const at::Tensor& before) {
  const at::NoGradGuard no_grad;
  const auto& slice = *find(parameter);
  auto& gradient = slice.tensor.mutable_grad();
  if (!gradient.defined()) {
    gradient = slice.gradient;
    gradient.copy_(now);
    return;
  }
  // A NaN that stays one was not written.
  const auto written = now.ne(before).logical_and_(
      now.isnan().logical_and_(before.isnan()).logical_not_());
  const auto found = gradient.detach();
  gradient.copy_(at::where(
      written.to(found.device()).view(found.sizes()),
      now.to(found.options()).view(found.sizes()), found));
}

void Slices::clear_gradient(int parameter) {
  used_[static_cast<std::size_t>(parameter)] = false;
  if (const auto* slice = find(parameter)) {
    slice->tensor.mutable_grad().reset();
  }
}

void Slices::clear_gradients() {
  used_.assign(used_.size(), false);
  for (auto& slice : slices_) {
    slice.tensor.mutable_grad().reset();
  }
}

}  // namespace sherd::fsdp
