// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/weight_average.h>

#include <utility>
#include <ATen/core/grad_mode.h>

#include "base/check.h"

namespace sherd {

WeightAverage::WeightAverage(NamedParameters parameters, double decay)
    : parameters_(std::move(parameters)), decay_(decay) {
  SHERD_CHECK(
      decay >= 0.0 && decay < 1.0,
      "[optim] WeightAverage: expected a decay in [0, 1), found ", decay);
  for (const auto& item : parameters_.items) {
    averages_.push_back(item.slice.detach().clone());
  }
}

void WeightAverage::update() {
  check_not_swapped("update()");
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    const auto& slice = parameters_.items[i].slice;
    if (slice.is_floating_point()) {
      averages_[i].lerp_(slice.detach(), 1.0 - decay_);
    } else {
      averages_[i].copy_(slice);
    }
  }
}

void WeightAverage::reset() {
  check_not_swapped("reset()");
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    averages_[i].copy_(parameters_.items[i].slice);
  }
}

void WeightAverage::swap() {
  const at::NoGradGuard no_grad;
  if (parameters_.before_load) {
    parameters_.before_load();
  }
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    const auto& slice = parameters_.items[i].slice;
    const auto weights = slice.detach().clone();
    slice.copy_(averages_[i]);
    averages_[i].copy_(weights);
  }
  swapped_ = !swapped_;
  const auto& publish = parameters_.publish_loaded ? parameters_.publish_loaded
                                                   : parameters_.publish;
  if (publish) {
    publish();
  }
}

NamedParameters WeightAverage::averages() const {
  check_not_swapped("averages()");
  NamedParameters averages;
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    averages.items.push_back(
        {.name = parameters_.items[i].name, .slice = averages_[i]});
  }
  averages.state_only = parameters_.state_only;
  averages.rank_to_save = parameters_.rank_to_save;
  averages.whole = parameters_.whole;
  averages.tied_names = parameters_.tied_names;
  return averages;
}

void WeightAverage::check_not_swapped(const char* call) const {
  SHERD_CHECK_AS(
      kFailedPrecondition, !swapped_, "[optim] WeightAverage: ", call,
      " while the model has the averages; expected a second swap() before");
}

}  // namespace sherd
