// SPDX-License-Identifier: Apache-2.0
//
// A module cut into units: which parameter lies where. Built once per model,
// the same on every rank that has an equal module. A value that keeps the
// parameter tensors alive. Thread rule: as for a value.
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
  std::vector<exchange::UnitSpec> units;     // By their first parameter.
  std::vector<ManagedParameter> parameters;  // In module order.
  std::optional<UnitId> root;                // Set when it owns anything.
};

// Throws Error when there is none of that name.
const ManagedParameter& find_parameter(
    const ModelUnits& model, const std::string& name);

using Granularity =
    std::function<std::int64_t(const std::string&, const at::Tensor&)>;

// A tied parameter counts once, under its first name. Throws Error for what
// cannot be sharded (see fully_shard).
ModelUnits build_units(
    const torch::nn::Module& module,
    const units::Policy& policy,
    int ranks,
    const Granularity& granularity,
    const MixedPrecision& precision = {});

}  // namespace sherd::fsdp
