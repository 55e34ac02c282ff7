// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/pace.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace sherd::ft {
namespace {

constexpr std::size_t kGapsMax = 31;

}  // namespace

void Pace::committed(Instant now) {
  if (commits_++ == 0) {
    first_ = last_ = now;
    return;
  }
  const Duration gap = now - last_;
  last_ = now;
  longest_ = std::max(longest_, gap);
  // The gap is counted before it becomes one of those that define the usual pace.
  counted_ += gaps_.empty() ? gap : counted(gap);
  gaps_.push_back(gap);
  if (gaps_.size() > kGapsMax) {
    gaps_.pop_front();
  }
}

Duration Pace::median() const {
  std::vector<Duration> sorted(gaps_.begin(), gaps_.end());
  const auto middle =
      sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

Duration Pace::counted(Duration gap) const {
  const Duration usual = median();
  return gap <= 2 * usual ? gap : usual;
}

double Pace::steps_per_s(Instant now) const {
  if (gaps_.empty()) {
    return 0;
  }
  const Duration gaps =
      std::accumulate(gaps_.begin(), gaps_.end(), Duration(0));
  // The current step lowers the pace only once it takes longer than usual.
  const Duration late =
      now - last_ > median() ? now - last_ - median() : Duration(0);
  // All commits may have the same time.
  const double all_s = std::max(seconds(gaps + late), 1e-9);
  return static_cast<double>(gaps_.size()) / all_s;
}

std::optional<double> Pace::effective(Instant now) const {
  if (gaps_.empty() || now <= first_) {
    return std::nullopt;
  }
  return seconds(counted_ + counted(now - last_)) / seconds(now - first_);
}

Duration Pace::longest_gap(Instant now) const {
  return commits_ == 0 ? Duration(0) : std::max(longest_, now - last_);
}

}  // namespace sherd::ft
