// SPDX-License-Identifier: Apache-2.0
//
// What `sherd bench` concludes from times. A machine's noise is neither normal nor independent from
// second to second, so contenders are compared within a round, where they met the same noise, and
// rounds are summarised by medians with distribution-free intervals. Thread rule: pure functions,
// any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sherd::bench {

// The quantile is interpolated between neighbours. REQUIRES: values is not empty, q in [0, 1].
double quantile(std::vector<double> values, double q);

double median(const std::vector<double>& values);

// A median and its 95 % confidence interval.
struct MedianEstimate {
  double median = 0.0;
  double low = 0.0;
  double high = 0.0;

  // The width of the interval relative to the median.
  double width() const { return (high - low) / median; }
};

// The interval between two order statistics: the k-th smallest and the k-th largest value, with the
// largest k for which the median of the distribution lies between them with a probability of at
// least 0.95, whatever the distribution is (binomial, p = 1/2). Below 6 values no interval is that
// certain: low and high are then minus and plus infinity. REQUIRES: values is not empty.
MedianEstimate estimate_median(const std::vector<double>& values);

// Divides element by element. REQUIRES: both have the same size.
std::vector<double> ratios(
    const std::vector<double>& values, const std::vector<double>& bases);

// The order in which contenders run in a round: a shuffle of 0 ... count - 1 determined by the
// round's number, so that none always follows the same one.
std::vector<std::size_t> order_of_round(std::size_t count, std::uint64_t round);

// How long measuring takes, and how narrow an interval it reaches.
struct StopLimits {
  double interval_width = 0.02;  // For each ratio, relative to the ratio.
  int rounds_max = 60;
  double minutes_max = 10.0;
};

// Why measuring ends after this many rounds; empty if it goes on. Checking after each round makes
// the true confidence of the intervals a little lower than stated.
std::string stop_reason(
    const std::vector<MedianEstimate>& ratios_to_bound,
    int rounds,
    double seconds,
    const StopLimits& limits);

}  // namespace sherd::bench
