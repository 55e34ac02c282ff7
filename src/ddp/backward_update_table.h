// SPDX-License-Identifier: Apache-2.0
//
// What optimizers gave to a replica's backward, by parameter: updates to make
// where a gradient is averaged, instead of showing it. Thread rule: the caller's
// lock.
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
  // Of dense parameters, which an update is for; it leaves out others.
  explicit BackwardUpdateTable(const std::vector<ModuleTensor>& parameters);

  // As NamedParameters::update_in_backward: taken while the result lives.
  std::shared_ptr<void> take(BackwardUpdate update);

  // Updates the parameter by an average, contiguous; false: nobody took it.
  bool run(std::size_t parameter, const at::Tensor& average) const;

 private:
  struct Place {
    std::weak_ptr<const BackwardUpdate> update = {};
    std::size_t index = 0;  // In its names.
  };
  const std::vector<ModuleTensor>& parameters_;
  std::unordered_map<std::string, std::size_t> by_name_;  // Parameters.
  std::vector<Place> places_;                             // By parameter.
};

}  // namespace sherd::ddp
