// SPDX-License-Identifier: Apache-2.0
#include "ft/toy_model.h"

#include <cstring>
#include <numeric>
#include "base/check.h"
#include "base/hash.h"
#include "ft/protocol/reduce_shape.h"

namespace sherd::ft::test {
namespace {

float draw(std::int64_t sample, std::size_t element, int shard) {
  const auto key = static_cast<std::uint64_t>(sample) * 7919 + element * 31 +
      static_cast<std::uint64_t>(shard) * 1000003;
  return static_cast<float>(mix64(key) % 1000) * 1e-3F;
}

}  // namespace

ToyModel::ToyModel(std::int64_t elements, int shard)
    : values_(static_cast<std::size_t>(elements)),
      momentum_(values_.size()),
      shard_(shard) {}

void ToyModel::gradients_of(
    const std::vector<SampleRange>& samples, float* to) const {
  std::int64_t count = 0;
  for (const auto& range : samples) {
    count += range.size();
  }
  for (std::size_t i = 0; i < values_.size(); ++i) {
    float sum = 0;
    for (const auto& range : samples) {
      for (auto sample = range.begin; sample < range.end; ++sample) {
        sum += values_[i] - draw(sample, i, shard_);
      }
    }
    to[i] = count > 0 ? sum / static_cast<float>(count) : 0;
  }
}

void ToyModel::update(const float* gradients) {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    // Volatile, so that no compiler fuses what another one does not.
    const volatile float kept = 0.9F * momentum_[i];
    momentum_[i] = kept + gradients[i];
    const volatile float change = 0.1F * momentum_[i];
    values_[i] -= change;
  }
}

std::string ToyModel::snapshot() const {
  const auto bytes = values_.size() * sizeof(float);
  std::string all(2 * bytes, '\0');
  std::memcpy(all.data(), values_.data(), bytes);
  std::memcpy(all.data() + bytes, momentum_.data(), bytes);
  return all;
}

void ToyModel::restore(std::string_view all) {
  const auto bytes = values_.size() * sizeof(float);
  SHERD_CHECK(
      all.size() == 2 * bytes, "[toy] expected ", 2 * bytes, " bytes, found ",
      all.size());
  std::memcpy(values_.data(), all.data(), bytes);
  std::memcpy(momentum_.data(), all.data() + bytes, bytes);
}

std::uint64_t ToyModel::hash() const {
  return Hash64().add(snapshot()).value();
}

void ToyModel::flip_bit(std::size_t element) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &values_.at(element), sizeof bits);
  bits ^= 1U << 20U;
  std::memcpy(&values_.at(element), &bits, sizeof bits);
}

namespace {

// Each member's weighted contribution to an element.
class WeightedParts {
 public:
  WeightedParts(
      const std::vector<Floats>& gradients, const std::vector<double>& weights)
      : gradients_(gradients) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (const double weight : weights) {
      factors_.push_back(static_cast<float>(weight / sum));
    }
  }
  int members() const { return static_cast<int>(gradients_.size()); }
  float of(std::size_t member, std::size_t i) const {
    volatile float part = 0;
    if (factors_[member] > 0) {
      part = factors_[member] * gradients_[member][i];
    }
    return part;
  }

 private:
  const std::vector<Floats>& gradients_;
  std::vector<float> factors_;
};

// From `first` on.
float ring_sum(const WeightedParts& parts, std::size_t first, std::size_t i) {
  const auto members = static_cast<std::size_t>(parts.members());
  float sum = parts.of(first, i);
  for (std::size_t k = 1; k < members; ++k) {
    sum = sum + parts.of((first + k) % members, i);
  }
  return sum;
}

// In the order: the first child's sum, the member's own part, the second child's sum.
float tree_sum(
    const WeightedParts& parts, int tree, int position, std::size_t i) {
  float sum = parts.of(static_cast<std::size_t>(position), i);
  for (const int child :
       tree_node_of(parts.members(), tree, position).children) {
    sum = tree_sum(parts, tree, child, i) + sum;
  }
  return sum;
}

int root_of(int members, int tree) {
  int root = 0;
  while (const auto parent = tree_node_of(members, tree, root).parent) {
    root = *parent;
  }
  return root;
}

}  // namespace

Floats weighted_mean(
    const std::vector<Floats>& gradients,
    const std::vector<double>& weights,
    const std::vector<std::int64_t>& buckets) {
  const WeightedParts parts(gradients, weights);
  const auto members = static_cast<std::size_t>(parts.members());
  const bool is_ring = reduce_shape_of(parts.members()) == ReduceShape::kRing;
  Floats mean(gradients.front().size());
  std::size_t at = 0;
  int tree = 0;  // A bucket is one chunk, and the trees take turns.
  for (const auto elements : buckets) {
    const auto count = static_cast<std::size_t>(elements);
    std::size_t segment = 0;  // Longer ones come first.
    std::size_t left = count / members + (count % members > 0 ? 1 : 0);
    for (std::size_t i = at; i < at + count; ++i, --left) {
      while (left == 0) {
        ++segment;
        left = count / members + (segment < count % members ? 1 : 0);
      }
      mean[i] = is_ring
          ? ring_sum(parts, segment, i)
          : tree_sum(parts, tree, root_of(parts.members(), tree), i);
    }
    at += count;
    tree = (tree + 1) % kTrees;
  }
  return mean;
}

}  // namespace sherd::ft::test
