// SPDX-License-Identifier: Apache-2.0
//
// BackwardUpdateTable holds, by parameter, the updates that optimizers make in a replica's
// backward: an averaged gradient is used up by its update instead of being shown. Thread rule: the
// caller's lock.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>
#include "ddp/replicated_model.h"

namespace sherd::ddp {

class BackwardUpdateTable {
 public:
  // `parameters` are the dense ones; updates of others are ignored.
  explicit BackwardUpdateTable(const std::vector<ModuleTensor>& parameters);

  // As NamedParameters::update_in_backward: registered while the result lives.
  std::shared_ptr<void> take(BackwardUpdate update);

  // Whether one is registered that writes parameters.
  bool writes() const;

  // Updates the parameter by its average. Returns false where no update is registered.
  bool run(std::size_t parameter, const at::Tensor& average) const;

 private:
  struct Place {
    std::weak_ptr<const BackwardUpdate> update = {};
    std::size_t index = 0;  // Among the update's names.
  };
  const std::vector<ModuleTensor>& parameters_;
  std::unordered_map<std::string, std::size_t> by_name_;  // Parameters.
  std::vector<Place> places_;                             // By parameter.
};

}  // namespace sherd::ddp
