// SPDX-License-Identifier: Apache-2.0
#include "fsdp/summoned_parameters.h"

#include <ATen/core/grad_mode.h>

#include "autograd/param_key.h"
#include "base/check.h"
#include "device/memory.h"
#include "fsdp/parameter_integrity.h"

namespace sherd::fsdp {

void SummonedParameters::begin(
    const SummonOptions& options, const std::vector<UnitId>& units, bool keep) {
  cache_.release_all();
  full_.resize(model_.units.size());
  shown_.resize(model_.units.size());
  for (const auto unit : units) {
    copy_unit(unit, keep);
  }
  options_ = options;
  for (std::size_t u = 0; u < shown_.size(); ++u) {
    if (!has(static_cast<UnitId>(u))) {
      continue;
    }
    std::vector<void*> addresses;
    for (const auto& shown : shown_[u]) {
      addresses.push_back(shown.mutable_data_ptr());
    }
    cache_.fill(static_cast<UnitId>(u), addresses);
  }
  show_full(full_precision());
}

void SummonedParameters::show_full(bool full) {
  for (std::size_t u = 0; u < full_.size(); ++u) {
    for (std::size_t f = 0; f < full_[u].size(); ++f) {
      if (model_.units[u].flats[f].is_cast()) {
        cache_.storages()[u][f]->show_instead(
            full ? full_[u][f] : at::Tensor());
      }
    }
  }
}

void SummonedParameters::copy_unit(UnitId unit, bool keep) {
  const auto addresses = cache_.fetch(unit, cache_.budget_bytes());
  auto& full = full_[static_cast<std::size_t>(unit)];
  auto& shown = shown_[static_cast<std::size_t>(unit)];
  for (std::size_t f = 0; keep && f < addresses.size(); ++f) {
    const auto& flat = model_.unit(unit).flats[f];
    full.push_back(device::tensor_at(
                       addresses[f], flat.layout.numel,
                       at::device(model_.device).dtype(flat.dtype))
                       .clone());
    shown.push_back(full.back().to(flat.unsharded_dtype()));
  }
  cache_.drop_fetched(unit);
}

at::Tensor SummonedParameters::part_of(
    const Copies& copies, const ManagedParameter& parameter) const {
  const auto u = static_cast<std::size_t>(parameter.unit);
  const auto f = static_cast<std::size_t>(parameter.flat);
  return copies[u][f]
      .narrow(0, model_.offset_of(parameter), parameter.tensor.numel())
      .view(parameter.tensor.sizes());
}

const ManagedParameter& SummonedParameters::parameter(
    const std::string& name) const {
  const auto& parameter = find_parameter(model_, name);
  SHERD_CHECK_AS(
      kFailedPrecondition, has(parameter.unit), "[fsdp] parameter ", name,
      " stays sharded in this summon scope, which is of another module or of "
      "rank 0 only");
  return parameter;
}

at::Tensor SummonedParameters::tensor(const std::string& name) const {
  return part_of(full_, parameter(name));
}

void SummonedParameters::take_back(int parameter) {
  const auto& managed = model_.parameter(parameter);
  const auto full = part_of(full_, managed);
  const auto shown = part_of(shown_, managed);
  if (full.const_data_ptr() == shown.const_data_ptr()) {
    slices_.copy_from_full(parameter, full);
  } else {
    slices_.copy_changed_elements(parameter, full, shown);
  }
}

void SummonedParameters::take_back_replaced(const ManagedParameter& parameter) {
  const auto& storage =
      *cache_.storages()[static_cast<std::size_t>(parameter.unit)]
                        [static_cast<std::size_t>(parameter.flat)];
  if (!has(parameter.unit) || autograd::is_adopted(parameter.tensor, storage)) {
    return;
  }
  check_replacement(model_, parameter);
  const at::NoGradGuard no_grad;
  part_of(full_precision() ? full_ : shown_, parameter)
      .copy_(parameter.tensor.detach());
  autograd::adopt(
      parameter.tensor, storage, model_.offset_of(parameter),
      model_.flat_of(parameter).unsharded_dtype());
}

void SummonedParameters::end() {
  for (std::size_t p = 0; may_write() && p < model_.parameters.size(); ++p) {
    take_back_replaced(model_.parameters[p]);
  }
  check_storages(model_, cache_.storages());
  show_full(false);
  for (std::size_t p = 0; may_write() && p < model_.parameters.size(); ++p) {
    if (has(model_.parameters[p].unit)) {
      take_back(static_cast<int>(p));
    }
  }
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    if (has(static_cast<UnitId>(u))) {
      cache_.empty(static_cast<UnitId>(u));
    }
  }
  options_.reset();
  full_.clear();
  shown_.clear();
}

}  // namespace sherd::fsdp
