// SPDX-License-Identifier: Apache-2.0
#include "fsdp/parameter_integrity.h"

#include "autograd/param_key.h"
#include "base/check.h"
#include "base/hash.h"

namespace sherd::fsdp {

void check_storages(const ModelUnits& model, const Storages& storages) {
  for (const auto& parameter : model.parameters) {
    const auto& storage = *storages[static_cast<std::size_t>(parameter.unit)]
                                   [static_cast<std::size_t>(parameter.flat)];
    SHERD_CHECK_AS(
        kFailedPrecondition, autograd::is_adopted(parameter.tensor, storage),
        "[fsdp] parameter ", parameter.name,
        " was given another storage after sharding (module->to(), set_data() "
        "or the like); convert the module before fully_shard, or write values "
        "inside summon_full_parameters(), not read_only");
  }
}

void check_replacement(
    const ModelUnits& model, const ManagedParameter& parameter) {
  const auto& flat = model.flat_of(parameter);
  const auto& shape = flat.shapes[static_cast<std::size_t>(parameter.position)];
  const auto& given = parameter.tensor;
  SHERD_CHECK_AS(
      kFailedPrecondition,
      given.scalar_type() == flat.unsharded_dtype() &&
          given.device() == model.device && str(given.sizes()) == shape,
      "[fsdp] parameter ", parameter.name,
      " was replaced inside summon_full_parameters() (torch::load(), "
      "set_data() or the like): expected ",
      c10::toString(flat.unsharded_dtype()), " ", shape, " on ",
      model.device.str(), ", found ", c10::toString(given.scalar_type()), " ",
      given.sizes(), " on ", given.device().str());
}

std::uint64_t flags_fingerprint(const ModelUnits& model) {
  Hash64 hash;
  for (const auto& parameter : model.parameters) {
    hash.add(parameter.tensor.requires_grad() ? 1U : 0U);
  }
  return hash.value();
}

void check_can_train(const ModelUnits& model) {
  for (const auto& parameter : model.parameters) {
    SHERD_CHECK_AS(
        kFailedPrecondition,
        parameter.trainable >= 0 || !parameter.tensor.requires_grad(),
        "[fsdp] parameter ", parameter.name, " needs gradients and is of type ",
        c10::toString(parameter.tensor.scalar_type()),
        "; expected a real floating-point type, or requires_grad(false)");
  }
}

}  // namespace sherd::fsdp
