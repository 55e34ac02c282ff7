// SPDX-License-Identifier: Apache-2.0
//
// GradientCheck tests a rank's gradients before they are reduced: whether they are finite, and
// whether their norm is far above its moving average. It reads them once, while they are in the
// cache. Thread rule: inspect() from any thread, the rest from the one that trains.
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
  kGive,      // They are reduced as they are.
  kLeaveOut,  // The step is made without them.
  kStop,      // Training ends.
};

struct GradientCheckOptions {
  // Applies if one of them is infinite or not a number.
  GradientAction non_finite = GradientAction::kLeaveOut;
  // Applies if their norm exceeds its moving average by this ratio; 0: never.
  GradientAction outlier = GradientAction::kLeaveOut;
  double norm_ratio_max = 1e4;
};

struct GradientStats {
  double squares = 0;  // The sum of squares of the finite ones.
  bool finite = true;
};
GradientStats gradient_stats(std::span<const float> gradients);

class GradientCheck {
 public:
  // Throws Error for a ratio that is negative, or 1 and less and not 0.
  explicit GradientCheck(const GradientCheckOptions& options);
  GradientCheck(const GradientCheck&) = delete;
  GradientCheck& operator=(const GradientCheck&) = delete;

  // Begins a step whose gradients come in so many parts, in any order.
  void begin(std::size_t parts);
  // Whether this part may be reduced at once: neither when it is bad nor when it is the last one, so
  // that no reduction completes before finish() has judged. Only the first call for a part counts.
  // REQUIRES: part < parts.
  bool inspect(std::size_t part, std::span<const float> gradients);
  // All parts have come. What is wrong with them; none: their norm enters the moving average.
  std::optional<GradientFault> finish();

 private:
  std::optional<GradientFault> judge() const;

  const GradientCheckOptions options_;
  double usual_norm_ = 0;
  std::int64_t norms_ = 0;  // How many usual_norm_ averages.
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<bool> came_;
  std::size_t to_come_ = 0;
  GradientStats all_;
};

}  // namespace sherd::ft
