// SPDX-License-Identifier: Apache-2.0
//
// StepMetrics is what a run keeps of one step: a line of metrics.jsonl and a
// point of the curve. A value. Thread rule: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sherd::tools {

struct RankMetrics {
  double step_s = 0;
  // How long the rank's training thread computed or waited for a core. The rest
  // of the step it waited for other ranks or for the disk, so that the rank
  // with most is the one for which the others wait.
  double busy_s = 0;
  std::int64_t rss_bytes = 0;  // Resident memory.
};

struct StepMetrics {
  std::int64_t step = 0;  // Counted from 1.
  double loss = 0;        // The global batch's, before the step's update.
  // After the step's update, when measured.
  std::optional<double> val_loss = std::nullopt;
  double lr = 0;
  double grad_norm = 0;  // Before clipping.
  // With fp16: what the loss was multiplied by, and whether the step was skipped
  // because gradients overflowed.
  std::optional<double> loss_scale = std::nullopt;
  bool skipped = false;
  double step_s = 0;  // The slowest rank's, without validation.
  double tokens_per_s = 0;
  std::int64_t rss_bytes = 0;  // Of the rank with most.
  double time = 0;             // When the step ended: seconds since 1970, UTC.
  // Trained on since the run began; a replica of several counts its own.
  std::int64_t tokens = 0;
  // Model FLOPs utilisation, a share of 1 (model_flops.h); none: unknown.
  std::optional<double> mfu = std::nullopt;
  std::vector<RankMetrics> ranks = {};  // In the order of ranks.
};

}  // namespace sherd::tools
