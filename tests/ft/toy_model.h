// SPDX-License-Identifier: Apache-2.0
//
// ToyModel is one rank's part of a model of a few numbers, with momentum, so that it goes wrong
// when a step is missed, made twice or made from other samples. It computes the same bits in every
// process, so that one can replay what many did. Thread rule: a value; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "ft/protocol/identity.h"

namespace sherd::ft::test {

using Floats = std::vector<float>;

class ToyModel {
 public:
  ToyModel(std::int64_t elements, int shard);

  // The mean over the samples.
  void gradients_of(const std::vector<SampleRange>& samples, float* to) const;
  void update(const float* gradients);
  std::string snapshot() const;
  // Throws Error for bytes of another model.
  void restore(std::string_view bytes);
  // The hash of parameters and momentum.
  std::uint64_t hash() const;
  // A fault that no checksum of a message detects.
  void flip_bit(std::size_t element);

 private:
  Floats values_;
  Floats momentum_;
  int shard_;
};

// What the all-reduce must make of gradients with these weights, by member in the epoch's order,
// bit by bit: computed naively, one float after another. No bucket is longer than a chunk.
Floats weighted_mean(
    const std::vector<Floats>& gradients,
    const std::vector<double>& weights,
    const std::vector<std::int64_t>& buckets);

}  // namespace sherd::ft::test
