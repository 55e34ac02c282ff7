// SPDX-License-Identifier: Apache-2.0
//
// ModelUnits is a module cut into units: which parameter lies in which unit, flat and position. It
// is built once per model and is the same on every rank that has an equal module. A value that
// keeps the parameter tensors alive. Thread rule: as for a value.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/fsdp/units.h>
#include "exchange/exchange.h"
#include "exchange/unit_parameter.h"
#include "plan/unit_id.h"

namespace sherd::fsdp {

using plan::UnitId;

using ManagedParameter = exchange::UnitParameter;

struct ModelUnits {
  std::vector<exchange::UnitSpec> units;     // By their first parameters.
  std::vector<ManagedParameter> parameters;  // In module order.
  std::optional<UnitId> root;                // Set when it owns anything.

  const exchange::UnitSpec& unit(UnitId id) const {
    return units[static_cast<std::size_t>(id)];
  }
  const ManagedParameter& parameter(int index) const {
    return parameters[static_cast<std::size_t>(index)];
  }
  const exchange::FlatSpec& flat_of(const ManagedParameter& parameter) const {
    return unit(parameter.unit).flats[static_cast<std::size_t>(parameter.flat)];
  }
  // Where the parameter begins in its flat, in elements.
  std::int64_t offset_of(const ManagedParameter& parameter) const {
    return flat_of(parameter)
        .layout.offsets[static_cast<std::size_t>(parameter.position)];
  }
};

// Throws Error when no parameter has that name.
const ManagedParameter& find_parameter(
    const ModelUnits& model, const std::string& name);

using Granularity =
    std::function<std::int64_t(const std::string&, const at::Tensor&)>;

// A tied parameter counts once, under its first name. Throws Error for what cannot be sharded (see
// fully_shard).
ModelUnits build_units(
    const torch::nn::Module& module,
    const units::Policy& policy,
    int ranks,
    const Granularity& granularity,
    const MixedPrecision& precision = {});

}  // namespace sherd::fsdp
