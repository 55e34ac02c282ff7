// SPDX-License-Identifier: Apache-2.0
//
// ToyModel is one rank's part of a model of a few numbers, with momentum: what
// goes wrong when a step is missed, made twice or made from other samples. It
// makes the same bits in every process, so that one can replay what many did.
// Thread rule: a value; one thread.
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

  // Mean over the samples.
  void gradients_of(const std::vector<SampleRange>& samples, float* to) const;
  void update(const float* gradients);
  std::string snapshot() const;
  // Throws Error for bytes of another model.
  void restore(std::string_view bytes);
  // Of parameters and momentum.
  std::uint64_t hash() const;
  // Something that no checksum of a message sees.
  void flip_bit(std::size_t element);

 private:
  Floats values_;
  Floats momentum_;
  int shard_;
};

// What the all-reduce has to make of gradients with these weights, by member in
// the epoch's order, bit for bit: by the book, one float after another. No bucket
// is longer than a chunk.
Floats weighted_mean(
    const std::vector<Floats>& gradients,
    const std::vector<double>& weights,
    const std::vector<std::int64_t>& buckets);

}  // namespace sherd::ft::test
