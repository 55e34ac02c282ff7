// SPDX-License-Identifier: Apache-2.0
//
// GradientCheck looks at a rank's gradients before they are given away: whether
// they are finite, and whether their norm is far from what it usually was. It
// reads them once, where they were written a moment ago. Thread rule: inspect() from
// any thread, the rest from the one that trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

enum class GradientAction {
  kGive,      // As they are.
  kLeaveOut,  // The step is made without them.
  kStop,      // Training ends.
};

struct GradientCheckOptions {
  // Behaviour. Of gradients among which one is infinite or not a number.
  GradientAction non_finite = GradientAction::kLeaveOut;
  // Behaviour. Of gradients whose norm is more than so many times the usual one, a
  // moving average; 0: none is too large.
  GradientAction outlier = GradientAction::kLeaveOut;
  double norm_ratio_max = 1e4;
};

struct GradientStats {
  double squares = 0;  // Their sum, of those that are finite.
  bool finite = true;
};
GradientStats gradient_stats(std::span<const float> gradients);

class GradientCheck {
 public:
  // Throws Error for a ratio that is negative, or 1 and less and not 0.
  explicit GradientCheck(const GradientCheckOptions& options);
  GradientCheck(const GradientCheck&) = delete;
  GradientCheck& operator=(const GradientCheck&) = delete;

  // Of a step whose gradients come in so many parts, in any order.
  void begin(std::size_t parts);
  // Whether this part may be given away at once: not when it is bad, and not the
  // last one, so that nothing is reduced before finish() has judged. Of each part
  // the first call counts. REQUIRES: the part was begun.
  bool inspect(std::size_t part, std::span<const float> gradients);
  // All parts have come. What is wrong with them; none: they are what is usual
  // from now on.
  std::optional<GradientFault> finish();

 private:
  std::optional<GradientFault> judge() const;

  const GradientCheckOptions options_;
  double usual_norm_ = 0;
  std::int64_t norms_ = 0;  // That the usual one is of.
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<bool> came_;
  std::size_t to_come_ = 0;
  GradientStats all_;
};

}  // namespace sherd::ft
