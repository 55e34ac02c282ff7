// SPDX-License-Identifier: Apache-2.0
//
// StepMetrics is what a run keeps of one step: a line of metrics.jsonl and a
// point of the curve. A value. Thread rule: a value.
#pragma once

#include <cstdint>
#include <optional>

namespace sherd::tools {

struct StepMetrics {
  std::int64_t step = 0;  // Counted from 1.
  double loss = 0;        // The global batch's, before the step's update.
  // After the step's update, when measured.
  std::optional<double> val_loss = std::nullopt;
  double lr = 0;
  double grad_norm = 0;  // Before clipping.
  double step_s = 0;     // Without validation.
  double tokens_per_s = 0;
  std::int64_t rss_bytes = 0;  // Resident memory of the rank with most.
};

}  // namespace sherd::tools
