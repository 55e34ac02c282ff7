// SPDX-License-Identifier: Apache-2.0
//
// Notices what nobody announces: module->to(), set_data() and
// vector_to_parameters() give a parameter another storage and take its key, so
// that it silently leaves its unit; requires_grad_() changes what backward
// produces. A sweep costs about 5 ns a parameter.
// Thread rule: the caller's lock.
#pragma once

#include <memory>
#include <vector>
#include "access/managed_storage.h"
#include "shard/model_units.h"

namespace sherd::shard {

using Storages =
    std::vector<std::vector<std::unique_ptr<access::ManagedStorage>>>;

class Identity {
 public:
  // Both must outlive it.
  Identity(const ModelUnits& model, const Storages& storages)
      : model_(model), storages_(storages) {}

  // Throws Error naming the first parameter that is not what it was, and the
  // remedy.
  void check() const;

 private:
  const ModelUnits& model_;
  const Storages& storages_;
};

}  // namespace sherd::shard
