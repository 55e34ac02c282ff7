// SPDX-License-Identifier: Apache-2.0
#include <sherd/data/distributed_sampler.h>

#include <algorithm>
#include <numeric>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>
#include "base/check.h"

namespace sherd::data {

struct DistributedSampler::State {
  std::int64_t size = 0;
  DistributedSamplerOptions options;
  std::int64_t epoch = 0;
  std::int64_t first = 0;  // Samples of the epoch before these.
  std::int64_t given = 0;  // Samples that next() gave to this rank.
  bool restored = false;   // The next reset() keeps `first`.
  // The order of the whole epoch; empty until it is needed.
  std::vector<std::int64_t> order{};

  std::int64_t left() const { return std::max<std::int64_t>(0, size - first); }

  std::int64_t per_rank() const {
    const auto ranks = options.num_replicas;
    return options.drop_last ? left() / ranks : (left() + ranks - 1) / ranks;
  }

  // The order of PyTorch: torch.randperm with a generator of seed + epoch.
  void make_order() {
    order.resize(static_cast<std::size_t>(size));
    if (!options.shuffle) {
      std::iota(order.begin(), order.end(), 0);
      return;
    }
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(
        options.seed + static_cast<std::uint64_t>(epoch));
    const auto drawn = at::randperm(size, generator, at::kLong);
    std::copy_n(drawn.const_data_ptr<std::int64_t>(), size, order.begin());
  }

  // The places after the last sample, which make the ranks' shares equal, repeat the first samples.
  std::int64_t index_at(std::int64_t place) const {
    return order[static_cast<std::size_t>(place % size)];
  }
};

DistributedSampler::DistributedSampler(
    std::int64_t size, const DistributedSamplerOptions& options)
    : state_(std::make_shared<State>()) {
  SHERD_CHECK(
      size >= 1, "[data] expected a dataset of at least one sample, found ",
      size);
  SHERD_CHECK(
      options.num_replicas >= 1 && options.rank >= 0 &&
          options.rank < options.num_replicas,
      "[data] expected a rank in [0, ", options.num_replicas, "), found ",
      options.rank);
  state_->size = size;
  state_->options = options;
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  if (state_->restored && state_->epoch == epoch) {
    return;
  }
  *state_ = {.size = state_->size, .options = state_->options, .epoch = epoch};
}

std::int64_t DistributedSampler::size() const { return state_->per_rank(); }

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  auto& state = *state_;
  if (new_size) {
    SHERD_CHECK(
        *new_size >= 1,
        "[data] expected a dataset of at least one sample, found 0");
    state.size = static_cast<std::int64_t>(*new_size);
    state.order.clear();
  }
  state.first = state.restored ? state.first : 0;
  state.restored = false;
  state.given = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(
    std::size_t batch_size) {
  auto& state = *state_;
  const auto count = std::min(
      static_cast<std::int64_t>(batch_size), state.per_rank() - state.given);
  if (count <= 0) {
    return std::nullopt;
  }
  if (state.order.empty()) {
    state.make_order();
  }
  std::vector<std::size_t> indices;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto place = state.first +
        state.given++ * state.options.num_replicas + state.options.rank;
    indices.push_back(static_cast<std::size_t>(state.index_at(place)));
  }
  return indices;
}

SamplerPosition DistributedSampler::position() const {
  return {
      .epoch = state_->epoch,
      .samples = std::min(
          state_->size,
          state_->first + state_->given * state_->options.num_replicas)};
}

void DistributedSampler::restore(const SamplerPosition& position) {
  SHERD_CHECK(
      position.epoch >= 0 && position.samples >= 0,
      "[data] expected an epoch and samples of at least 0, found ",
      position.epoch, " and ", position.samples);
  set_epoch(position.epoch);
  state_->first = position.samples;
  state_->restored = true;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const auto at = position();
  archive.write("epoch", c10::IValue(at.epoch));
  archive.write("samples", c10::IValue(at.samples));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  c10::IValue epoch;
  c10::IValue samples;
  archive.read("epoch", epoch);
  archive.read("samples", samples);
  restore({.epoch = epoch.toInt(), .samples = samples.toInt()});
}

}  // namespace sherd::data
