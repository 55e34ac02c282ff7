// SPDX-License-Identifier: Apache-2.0
#include "train/weight_average.h"

#include <map>
#include <string>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace sherd::tools {
namespace {

constexpr const char* kAverageSection = "ema";

}  // namespace

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
  std::map<std::string, NamedShard> shards;
  for (const auto& whole : parameters_.whole.items) {
    shards[whole.name] = {// Of some parameters this rank has nothing.
                          .name = whole.name,
                          .shape = whole.shape,
                          .begin = whole.slice_begin,
                          .elements = at::empty({0}),
                          .ranks = parameters_.whole.ranks};
  }
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    const auto& name = parameters_.items[i].name;
    auto& shard = shards[name];
    if (shard.name.empty()) {  // A plain tensor, which every rank has whole.
      shard.name = name;
      shard.shape = averages_[i].sizes().vec();
    }
    shard.elements = averages_[i];
  }
  for (auto& [name, shard] : shards) {
    state.add(kAverageSection, std::move(shard));
  }
}

}  // namespace sherd::tools
