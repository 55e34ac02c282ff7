// SPDX-License-Identifier: Apache-2.0
//
// DistributedSampler distributes the samples of any torch::data dataset over the ranks of a job. It
// gives the same indices in the same order as PyTorch's torch.utils.data.DistributedSampler with
// the same options. Unlike torch::data::samplers::DistributedRandomSampler it can resume in the
// middle of an epoch, also on another number of ranks. Copies share their state, so a sampler that
// was moved into a data loader follows set_epoch() of a copy that was kept. Thread rule: one
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>
#include <sherd/base/error.h>
#include <torch/data/samplers/base.h>

namespace sherd::data {

struct DistributedSamplerOptions {
  std::int64_t num_replicas = 1;  // The world size.
  std::int64_t rank = 0;
  bool shuffle = true;     // Each epoch has another order.
  std::uint64_t seed = 0;  // The same on every rank.
  // Leaves out the last samples, of which there are not enough for every rank, instead of repeating
  // the first samples.
  bool drop_last = false;
};

// The position of a job in its samples. Equal on every rank.
struct SamplerPosition {
  std::int64_t epoch = 0;
  std::int64_t samples = 0;  // How many of this epoch all ranks have had.

  bool operator==(const SamplerPosition&) const = default;
};

class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // `size` is that of the dataset. Throws Error, saying what was expected and found, if the size or
  // the number of ranks is below 1, or if the rank is outside the world.
  DistributedSampler(
      std::int64_t size, const DistributedSamplerOptions& options);

  // Call it before each epoch, as in PyTorch; without it every epoch has the order of the first.
  // The epoch starts from its first sample or, right after restore() to the same epoch, from there.
  void set_epoch(std::int64_t epoch);

  // How many samples of an epoch this rank has: PyTorch's len(sampler). After restore(), what is
  // left of that epoch.
  std::int64_t size() const;

  // Starts the epoch again, or continues where restore() said; a data loader calls it in begin().
  // `new_size` is a new size of the dataset.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  // Returns this rank's next `batch_size` indices, fewer at the end of the epoch, and then nothing.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // What next() has returned so far, on every rank. The workers of a data loader fetch ahead: with
  // them, count the batches that were trained on and use {epoch, batches * batch_size *
  // num_replicas}.
  SamplerPosition position() const;
  // Continues from a position at the next reset(), on any number of ranks: the remaining samples of
  // the epoch are distributed over them. Throws Error for a negative number.
  void restore(const SamplerPosition& position);

  // Save and load the position, for torch::save and torch::load.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  HandleState<std::shared_ptr<State>, "[data] DistributedSampler"> state_;
};

}  // namespace sherd::data
