// SPDX-License-Identifier: Apache-2.0
#include "shard/identity.h"

#include "access/param_key.h"
#include "base/check.h"

namespace sherd::shard {

void Identity::check() const {
  for (const auto& parameter : model_.parameters) {
    const auto& storage = *storages_[static_cast<std::size_t>(parameter.unit)]
                                    [static_cast<std::size_t>(parameter.flat)];
    SHERD_CHECK_AS(
        kFailedPrecondition, access::is_adopted(parameter.tensor, storage),
        "[shard] parameter ", parameter.name,
        " was given another storage after sharding (module->to(), set_data() "
        "or the like); convert the module before fully_shard, or write values "
        "inside summon_full_parameters()");
    SHERD_CHECK_AS(
        kFailedPrecondition,
        parameter.tensor.requires_grad() == (parameter.trainable >= 0),
        "[shard] requires_grad of parameter ", parameter.name,
        " was changed after sharding; expected ",
        parameter.trainable >= 0 ? "true" : "false", ", as at fully_shard");
  }
}

}  // namespace sherd::shard
