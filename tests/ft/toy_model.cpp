// SPDX-License-Identifier: Apache-2.0
#include "ft/toy_model.h"

#include <cstring>
#include "base/check.h"
#include "base/hash.h"

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
    // Volatile: no compiler fuses what another one does not.
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

Floats weighted_mean(
    const std::vector<Floats>& gradients,
    const std::vector<double>& weights,
    const std::vector<std::int64_t>& buckets) {
  const std::size_t members = gradients.size();
  double sum = 0;
  for (const double weight : weights) {
    sum += weight;
  }
  Floats mean(gradients.front().size());
  std::size_t at = 0;
  for (const auto elements : buckets) {
    const auto count = static_cast<std::size_t>(elements);
    std::size_t segment = 0;  // Longer ones come first.
    std::size_t left = count / members + (count % members > 0 ? 1 : 0);
    for (std::size_t i = at; i < at + count; ++i, --left) {
      while (left == 0) {
        ++segment;
        left = count / members + (segment < count % members ? 1 : 0);
      }
      for (std::size_t k = 0; k < members; ++k) {
        const std::size_t member = (segment + k) % members;
        volatile float part = 0;
        if (weights[member] > 0) {
          part =
              static_cast<float>(weights[member] / sum) * gradients[member][i];
        }
        mean[i] = k == 0 ? part : mean[i] + part;
      }
    }
    at += count;
  }
  return mean;
}

}  // namespace sherd::ft::test
