// SPDX-License-Identifier: Apache-2.0
//
// GradientCheck tests a rank's gradients before they are reduced: whether they are finite, and
// whether their norm is far above its moving average. It reads them once, while they are in the
// cache. Thread rule: any thread may call inspect(), only the training thread the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>
#include <sherd/ft/session_types.h>
#include "ft/protocol/messages.h"

namespace sherd::ft {

struct GradientStats {
  double squares = 0;  // The sum of squares of the finite gradients.
  bool finite = true;
};
GradientStats gradient_stats(std::span<const float> gradients);

class GradientCheck {
 public:
  struct Options {
    // Applies if a gradient is infinite or not a number.
    GradientPolicy non_finite = GradientPolicy::kLeaveOut;
    // Applies if the norm exceeds its moving average by this ratio; 0 turns it off.
    GradientPolicy outlier = GradientPolicy::kLeaveOut;
    double norm_ratio_max = 1e4;
  };

  // Throws Error for a ratio that is negative, or positive but at most 1.
  explicit GradientCheck(const Options& options);
  GradientCheck(const GradientCheck&) = delete;
  GradientCheck& operator=(const GradientCheck&) = delete;

  // Begins a step whose gradients arrive in this many parts, in any order.
  void begin(std::size_t parts);
  // Returns whether this part may be reduced at once. It may not when it is bad, nor when it is the
  // last one, so that no reduction completes before finish() has judged. Only the first call for a
  // part counts. REQUIRES: part < parts.
  bool inspect(std::size_t part, std::span<const float> gradients);
  // All parts have arrived. Returns what is wrong with them; if nothing is, their norm enters the
  // moving average.
  std::optional<GradientFault> finish();

 private:
  std::optional<GradientFault> judge() const;

  const Options options_;
  double usual_norm_ = 0;
  std::int64_t norms_ = 0;  // How many norms usual_norm_ averages.
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<bool> came_;
  std::size_t to_come_ = 0;
  GradientStats all_;
};

}  // namespace sherd::ft
