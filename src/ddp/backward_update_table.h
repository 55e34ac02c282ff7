// SPDX-License-Identifier: Apache-2.0
//
// BackwardUpdateTable holds, by parameter, the updates that optimizers make in a replica's
// backward: an averaged gradient is consumed by its update instead of being shown. Thread rule: the
// caller's lock.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>
#include "ddp/replicated_model.h"

namespace sherd::ddp {

class BackwardUpdateTable {
 public:
  // `parameters` are the dense ones; updates of others are ignored.
  explicit BackwardUpdateTable(const std::vector<ModuleTensor>& parameters)
      : parameters_(parameters), places_(parameters.size()) {}

  // Like NamedParameters::update_in_backward: registered while the result lives.
  std::shared_ptr<void> take(BackwardUpdate update);

  // Whether an update is registered that writes parameters.
  bool writes() const;

  // Updates the parameter with its average. Returns false if no update is registered for it.
  bool run(std::size_t parameter, const at::Tensor& average) const;

 private:
  struct Place {
    std::weak_ptr<const BackwardUpdate> update = {};
    std::size_t index = 0;  // In the update's list of names.
  };
  const std::vector<ModuleTensor>& parameters_;
  std::vector<Place> places_;  // By parameter.
};

}  // namespace sherd::ddp
