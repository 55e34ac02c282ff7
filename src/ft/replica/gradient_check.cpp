// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/gradient_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace sherd::ft {
namespace {

// How many norms are seen before one is called unusual, and the weight of a new norm in the
// average.
constexpr std::int64_t kNormsMin = 10;
constexpr double kNewest = 0.1;

// So short that single precision is good enough for the sum of a block.
constexpr std::size_t kBlock = 4096;
constexpr std::size_t kLanes = 16;

float squares_of(std::span<const float> block) {
  std::array<float, kLanes> lanes{};
  std::size_t i = 0;
  for (; i + kLanes <= block.size(); i += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) {
      lanes[k] += block[i + k] * block[i + k];
    }
  }
  float sum = 0;
  for (const float lane : lanes) {
    sum += lane;
  }
  for (; i < block.size(); ++i) {
    sum += block[i] * block[i];
  }
  return sum;
}

// For a block whose squares are too large for single precision, or that has something wrong.
GradientStats exact_gradient_stats(std::span<const float> block) {
  GradientStats look;
  for (const float one : block) {
    if (std::isfinite(one)) {
      look.squares += double{one} * double{one};
    } else {
      look.finite = false;
    }
  }
  return look;
}

void add(GradientStats& all, const GradientStats& one) {
  all.squares += one.squares;
  all.finite = all.finite && one.finite;
}

std::optional<GradientFault> fault_of(
    GradientPolicy action, std::string reason) {
  if (action == GradientPolicy::kGive) {
    return std::nullopt;
  }
  return GradientFault{std::move(reason), action == GradientPolicy::kStop};
}

}  // namespace

GradientStats gradient_stats(std::span<const float> gradients) {
  GradientStats all;
  while (!gradients.empty()) {
    const auto block = gradients.first(std::min(kBlock, gradients.size()));
    gradients = gradients.subspan(block.size());
    const float squares = squares_of(block);
    add(all,
        std::isfinite(squares) ? GradientStats{squares, true}
                               : exact_gradient_stats(block));
  }
  return all;
}

GradientCheck::GradientCheck(const Options& options) : options_(options) {
  SHERD_CHECK(
      options.norm_ratio_max == 0 || options.norm_ratio_max > 1,
      "[ft] expected a ratio of norms above 1, or 0, found ",
      options.norm_ratio_max);
}

void GradientCheck::begin(std::size_t parts) {
  const std::lock_guard lock(mutex_);
  came_.assign(parts, false);
  to_come_ = parts;
  all_ = {};
}

bool GradientCheck::inspect(
    std::size_t part, std::span<const float> gradients) {
  const auto found = gradient_stats(gradients);
  const std::lock_guard lock(mutex_);
  SHERD_ASSERT(part < came_.size(), "a part of gradients that was not begun");
  if (came_[part]) {
    return false;
  }
  came_[part] = true;
  add(all_, found);
  return --to_come_ > 0 &&
      (found.finite || options_.non_finite == GradientPolicy::kGive);
}

std::optional<GradientFault> GradientCheck::judge() const {
  if (!all_.finite) {
    return fault_of(options_.non_finite, "some are infinite or not a number");
  }
  const double norm = std::sqrt(all_.squares);
  if (options_.norm_ratio_max > 0 && norms_ >= kNormsMin &&
      norm > options_.norm_ratio_max * usual_norm_) {
    return fault_of(
        options_.outlier,
        str("their norm is ", norm, ", and usually it is ", usual_norm_));
  }
  return std::nullopt;
}

std::optional<GradientFault> GradientCheck::finish() {
  const std::lock_guard lock(mutex_);
  auto fault = judge();
  const double norm = std::sqrt(all_.squares);
  // Norms of zero say nothing about what is usual.
  if (!fault && all_.finite && norm > 0) {
    usual_norm_ += (norm - usual_norm_) * (norms_ == 0 ? 1 : kNewest);
    ++norms_;
  }
  return fault;
}

}  // namespace sherd::ft
