// SPDX-License-Identifier: Apache-2.0
//
// ModelUnits is a module cut into units: the unit, flat and position of each parameter. It is built
// once per model, and is the same on all ranks that have equal modules. A value that keeps the
// parameter tensors alive. Thread rule: as for a value.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/fsdp/cast_forward.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/fsdp/units.h>
#include "autograd/managed_storage.h"
#include "exchange/exchange.h"
#include "exchange/unit_parameter.h"
#include "plan/budget.h"
#include "plan/unit_id.h"

namespace sherd::fsdp {

using plan::UnitId;

using ManagedParameter = exchange::UnitParameter;

struct ModelUnits {
  // What the engine knows of a unit besides what is moved.
  struct UnitTraits {
    bool keep_whole = false;
    // The number of the unit that the policy made; its trained and its frozen parameters are two
    // units here.
    int policy_unit = 0;
    std::vector<autograd::ActivationCasts> casts;  // By flat.
  };

  // A buffer that is cast once.
  struct CastBuffer {
    std::string name;
    at::Tensor tensor;
    at::ScalarType dtype;
  };

  // What the forward of a module casts while it is sharded, and where the forward finds that.
  struct ForwardCast {
    std::shared_ptr<ForwardDtypes> used;
    ForwardDtypes dtypes;
  };

  // In the order of their first parameters. All parameters of a unit start trained, or all start
  // frozen.
  std::vector<exchange::UnitSpec> units;
  std::vector<UnitTraits> traits;            // By unit.
  std::vector<ManagedParameter> parameters;  // In module order.
  // From the further names of tied parameters to those above.
  std::map<std::string, std::string> tied_names;
  std::optional<UnitId> root;  // Set if it owns anything.
  std::vector<CastBuffer> cast_buffers;
  std::vector<ForwardCast> forward_casts;
  // The device of all parameters that have memory.
  c10::Device device = c10::kCPU;

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

// The bytes of each unit when whole.
std::vector<std::int64_t> bytes_by_unit(const ModelUnits& model);

// The sizes for presets of budgets: those of units as the policy made them, so that a preset does
// not depend on what is frozen.
plan::UnitSizes policy_unit_sizes(const ModelUnits& model);

// As in NamedParameters::uses_fp16.
bool uses_fp16(const ModelUnits& model);

// The parameter of that name, which may be any of a tied one. Throws Error if there is none.
const ManagedParameter& find_parameter(
    const ModelUnits& model, const std::string& name);

// The unit of that name, or the units that hold parameters of the module of that name and of
// modules inside it; ascending. Empty name: all units. Throws Error if there are none.
std::vector<UnitId> units_of(const ModelUnits& model, const std::string& name);

// Whether some parameter is used or reduced in another dtype than that of its shards, or casts what
// operators on it return.
bool is_mixed(const ModelUnits& model);

std::vector<UnitReport> list_units(const ModelUnits& model);

// Cuts the module into units and their flats for this many ranks, as options.{units, granularity,
// mixed_precision, ignored} say. A tied parameter counts once, under its first name. Throws Error
// for what cannot be sharded, and for options that contradict the module or themselves (see
// fully_shard).
ModelUnits build_units(
    const torch::nn::Module& module,
    int ranks,
    const FullyShardOptions& options = {});

}  // namespace sherd::fsdp
