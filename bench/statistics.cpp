// SPDX-License-Identifier: Apache-2.0
#include "bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include "format_text.h"

namespace sherd::bench {
namespace {

constexpr double kTail = 0.025;  // On each side.

// The largest k with P(fewer than k of n fair coins show heads) <= kTail; 0 if there is none. Uses
// logarithms, because 2^-n underflows at n = 1074.
int order_of_interval(int n) {
  double below = 0.0;
  int k = 0;
  while (k < n) {
    const double log_probability = std::lgamma(n + 1.0) - std::lgamma(k + 1.0) -
        std::lgamma(n - k + 1.0) - n * std::log(2.0);
    below += std::exp(log_probability);
    if (below > kTail) {
      break;
    }
    ++k;
  }
  return k;
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const auto above = std::min(below + 1, values.size() - 1);
  const double part = place - std::floor(place);
  return values[below] + part * (values[above] - values[below]);
}

double median(const std::vector<double>& values) {
  return quantile(values, 0.5);
}

MedianEstimate estimate_median(const std::vector<double>& values) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int k = order_of_interval(static_cast<int>(values.size()));
  if (k == 0) {
    return {.median = median(values), .low = -kInfinity, .high = kInfinity};
  }
  auto sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const auto first = static_cast<std::size_t>(k - 1);
  return {
      .median = median(sorted),
      .low = sorted[first],
      .high = sorted[sorted.size() - 1 - first]};
}

std::vector<double> ratios(
    const std::vector<double>& values, const std::vector<double>& bases) {
  std::vector<double> result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    result[i] = values[i] / bases[i];
  }
  return result;
}

std::vector<std::size_t> order_of_round(
    std::size_t count, std::uint64_t round) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937_64 random(round);
  // Written out, since the result of std::shuffle differs between standard libraries.
  for (std::size_t left = count; left > 1; --left) {
    std::swap(order[left - 1], order[random() % left]);
  }
  return order;
}

std::string stop_reason(
    const std::vector<MedianEstimate>& ratios_to_bound,
    int rounds,
    double seconds,
    const StopLimits& limits) {
  const auto narrow = [&](const MedianEstimate& ratio) {
    return ratio.width() <= limits.interval_width;
  };
  if (std::all_of(ratios_to_bound.begin(), ratios_to_bound.end(), narrow)) {
    return tools::format(
        "every interval is within %.3g of its ratio", limits.interval_width);
  }
  if (rounds >= limits.rounds_max) {
    return tools::format("%d rounds are done", rounds);
  }
  return seconds >= 60.0 * limits.minutes_max
      ? tools::format("%.3g minutes have passed", seconds / 60.0)
      : "";
}

}  // namespace sherd::bench
