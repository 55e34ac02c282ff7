// SPDX-License-Identifier: Apache-2.0
#include "ddp/backward_update_table.h"

#include <algorithm>
#include <utility>

#include "autograd/param_key.h"
#include "base/check.h"

namespace sherd::ddp {

std::shared_ptr<void> BackwardUpdateTable::take(BackwardUpdate given) {
  const auto update = std::make_shared<BackwardUpdate>(std::move(given));
  std::vector<std::pair<std::size_t, std::size_t>> found;  // Parameter, index.
  for (std::size_t i = 0; i < update->names.size(); ++i) {
    const auto& name = update->names[i];
    const auto known =
        std::ranges::find(parameters_, name, &ModuleTensor::name);
    if (known == parameters_.end()) {
      continue;
    }
    const auto p = static_cast<std::size_t>(known - parameters_.begin());
    SHERD_CHECK_AS(
        kFailedPrecondition, places_[p].update.expired(), "[ddp] parameter ",
        name, " is updated in backward by another optimizer already");
    found.emplace_back(p, i);
  }
  for (const auto& [p, index] : found) {
    places_[p] = {.update = update, .index = index};
    parameters_[p].tensor.mutable_grad().reset();
  }
  return update;
}

bool BackwardUpdateTable::writes() const {
  return std::ranges::any_of(places_, [](const Place& place) {
    const auto update = place.update.lock();
    return update != nullptr && update->writes;
  });
}

bool BackwardUpdateTable::run(
    std::size_t parameter, const at::Tensor& average) const {
  const auto update = places_[parameter].update.lock();
  if (update == nullptr) {
    return false;
  }
  // These uses are the engine's own.
  const auto silent = autograd::exclude_param_key();
  update->update(places_[parameter].index, 0, average.contiguous().view({-1}));
  return true;
}

}  // namespace sherd::ddp
