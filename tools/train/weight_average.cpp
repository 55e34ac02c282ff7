// SPDX-License-Identifier: Apache-2.0
#include "train/weight_average.h"

#include <map>
#include <string>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include "generate/model_source.h"

namespace sherd::tools {

WeightAverage::WeightAverage(NamedParameters parameters, double decay)
    : parameters_(std::move(parameters)), decay_(decay) {
  for (const auto& item : parameters_.items) {
    averages_.push_back(item.slice.detach().clone());
  }
}

void WeightAverage::reset() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    averages_[i].copy_(parameters_.items[i].slice);
  }
}

void WeightAverage::update() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    averages_[i].lerp_(parameters_.items[i].slice.detach(), 1.0 - decay_);
  }
}

void WeightAverage::add_to(CheckpointState& state) const {
  NamedParameters averages;
  averages.whole = parameters_.whole;
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    averages.items.push_back(
        {.name = parameters_.items[i].name, .slice = averages_[i]});
  }
  add_slices(state, kAveragedWeights, averages);
}

void add_slices(
    CheckpointState& state,
    const std::string& section,
    const NamedParameters& slices) {
  std::map<std::string, NamedShard> shards;
  for (const auto& whole : slices.whole.items) {
    shards[whole.name] = {// This rank has nothing of some parameters.
                          .name = whole.name,
                          .shape = whole.shape,
                          .begin = whole.slice_begin,
                          .elements = at::empty({0}),
                          .ranks = slices.whole.ranks};
  }
  for (const auto& item : slices.items) {
    auto& shard = shards[item.name];
    // A plain tensor, which every rank has as a whole.
    if (shard.name.empty()) {
      shard.name = item.name;
      shard.shape = item.slice.sizes().vec();
    }
    shard.elements = item.slice.detach();
  }
  for (auto& [name, shard] : shards) {
    state.add(section, std::move(shard));
  }
}

}  // namespace sherd::tools
