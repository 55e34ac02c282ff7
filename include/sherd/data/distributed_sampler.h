// SPDX-License-Identifier: Apache-2.0
//
// DistributedSampler deals the samples of any torch::data dataset out to the ranks of a job: the
// indices that torch.utils.data.DistributedSampler of PyTorch gives for the same options, in the
// same order. Unlike torch::data::samplers::DistributedRandomSampler it can go on in the middle of
// an epoch, on another number of ranks, too. Copies share their state, so that the one that was
// moved into a data loader follows set_epoch() of the one that was kept. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>
#include <torch/data/samplers/base.h>

namespace sherd::data {

struct DistributedSamplerOptions {
  std::int64_t num_replicas = 1;  // The world size.
  std::int64_t rank = 0;
  bool shuffle = true;     // In another order in each epoch.
  std::uint64_t seed = 0;  // The same on every rank.
  // Leaves out the last samples that not every rank has one of, instead of repeating the first.
  bool drop_last = false;
};

// Where a job is in its samples. Equal on every rank.
struct SamplerPosition {
  std::int64_t epoch = 0;
  std::int64_t samples = 0;  // Of this epoch, that all ranks together have had.

  bool operator==(const SamplerPosition&) const = default;
};

class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // `size` is the dataset's. Throws Error naming expected and found for a size or a number of ranks
  // below 1, and for a rank outside of the world.
  DistributedSampler(
      std::int64_t size, const DistributedSamplerOptions& options);

  // Call it before each epoch, as in PyTorch; without it every epoch has the order of the first.
  // The epoch starts from its first sample.
  void set_epoch(std::int64_t epoch);

  // How many samples of an epoch this rank has: PyTorch's len(sampler). After restore() what is
  // left of it.
  std::int64_t size() const;

  // Starts the epoch again, or where restore() said; a data loader calls it in begin(). A new size
  // is that of the dataset.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  // This rank's next `batch_size` indices, fewer at the end of the epoch, then nothing.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // What next() has given so far, on every rank. Workers of a data loader fetch ahead: with them,
  // count the batches that were trained on and say {epoch, batches * batch_size * num_replicas}.
  SamplerPosition position() const;
  // Goes on from there at the next reset(), on any number of ranks: the samples of the epoch that
  // are left are dealt out anew. Throws Error for a negative number.
  void restore(const SamplerPosition& position);

  // The position, by torch::save and torch::load.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sherd::data
