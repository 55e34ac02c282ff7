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
        "inside summon_full_parameters()");
  }
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
