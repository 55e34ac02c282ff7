// SPDX-License-Identifier: Apache-2.0
#include "fsdp/summoned_parameters.h"

#include <cstring>

#include <ATen/ops/empty.h>

namespace sherd::fsdp {

void SummonedParameters::begin(bool read_only) {
  read_only_ = read_only;
  cache_.release_all();
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    copy_unit(static_cast<UnitId>(u));
  }
  for (std::size_t u = 0; u < shown_.size(); ++u) {
    std::vector<void*> addresses;
    for (const auto& shown : shown_[u]) {
      addresses.push_back(shown.mutable_data_ptr());
    }
    cache_.fill(static_cast<UnitId>(u), addresses);
  }
}

void SummonedParameters::copy_unit(UnitId unit) {
  const auto addresses = cache_.fetch(unit);
  auto& full = full_.emplace_back();
  auto& shown = shown_.emplace_back();
  for (std::size_t f = 0; f < addresses.size(); ++f) {
    const auto& flat = model_.unit(unit).flats[f];
    full.push_back(
        at::empty({flat.layout.numel}, at::TensorOptions().dtype(flat.dtype)));
    std::memcpy(
        full.back().mutable_data_ptr(), addresses[f], full.back().nbytes());
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

at::Tensor SummonedParameters::tensor(const std::string& name) const {
  return part_of(full_, find_parameter(model_, name));
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

void SummonedParameters::end() {
  for (std::size_t p = 0; may_write() && p < model_.parameters.size(); ++p) {
    take_back(static_cast<int>(p));
  }
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    cache_.empty(static_cast<UnitId>(u));
  }
  full_.clear();
  shown_.clear();
}

}  // namespace sherd::fsdp
