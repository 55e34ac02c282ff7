// SPDX-License-Identifier: Apache-2.0
//
// Pace measures how fast steps are committed. Effective training time is the share of the time
// since the first commit seen in which steps were committed at their usual pace: a gap between two
// commits counts in full up to twice the median of the last 31 gaps, and a longer gap, a stall,
// counts as one median. The time since the last commit is treated in the same way. Thread rule: one
// thread; a value.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include "base/clock.h"

namespace sherd::ft {

class Pace {
 public:
  void committed(Instant now);

  std::int64_t commits() const { return commits_; }
  // Over at most the last 31 commits and the time since the last one; 0 if fewer than two were
  // seen.
  double steps_per_s(Instant now) const;
  // Nullopt before the second commit.
  std::optional<double> effective(Instant now) const;
  // The longest time between two commits, or since the last one.
  Duration longest_gap(Instant now) const;

 private:
  Duration median() const;
  Duration counted(Duration gap) const;

  std::int64_t commits_ = 0;
  Instant first_{};
  Instant last_{};
  Duration counted_{0};
  Duration longest_{0};
  std::deque<Duration> gaps_;  // The most recent gaps.
};

}  // namespace sherd::ft
