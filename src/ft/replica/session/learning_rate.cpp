// SPDX-License-Identifier: Apache-2.0
#include <sherd/ft/replica_session.h>

#include <cmath>

#include "base/check.h"

namespace sherd::ft {

double learning_rate_factor(
    LearningRateScaling scaling,
    std::int64_t samples,
    std::int64_t samples_full) {
  SHERD_CHECK(
      samples > 0 && samples_full > 0,
      "[ft] expected samples of a step and of a full one, found ", samples,
      " and ", samples_full);
  const auto share =
      static_cast<double>(samples) / static_cast<double>(samples_full);
  switch (scaling) {
    case LearningRateScaling::kNone:
      return 1.0;
    case LearningRateScaling::kLinear:
      return share;
    case LearningRateScaling::kSquareRoot:
      return std::sqrt(share);
  }
  SHERD_ASSERT(false, "each scaling has a factor");
}

}  // namespace sherd::ft
