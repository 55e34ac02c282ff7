// SPDX-License-Identifier: Apache-2.0
//
// StepMetrics is what a run records of one step: a line of metrics.jsonl and a point of the curve.
// Thread rule: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sherd::tools {

struct RankMetrics {
  double step_s = 0;
  // How long the rank's training thread computed or waited for a core. During the rest of the step
  // it waited for other ranks or for the disk, so the rank with most is the one for which the
  // others wait.
  double busy_s = 0;
  std::int64_t rss_bytes = 0;  // Resident memory.
};

struct StepMetrics {
  std::int64_t step = 0;  // Counted from 1.
  // The loss of the global batch, before the step's update.
  double loss = 0;
  // After the step's update, if measured.
  std::optional<double> val_loss = std::nullopt;
  double lr = 0;
  double grad_norm = 0;  // Before clipping.
  // With fp16: the factor of the loss, and whether the step was skipped because gradients
  // overflowed.
  std::optional<double> loss_scale = std::nullopt;
  std::optional<bool> skipped = std::nullopt;
  double step_s = 0;  // That of the slowest rank, without validation.
  double tokens_per_s = 0;
  std::int64_t rss_bytes = 0;  // That of the rank with most.
  double time = 0;             // When the step ended: seconds since 1970, UTC.
  // Tokens trained since the run began; each of several replicas counts its own.
  std::int64_t tokens = 0;
  // Model FLOPs utilisation, a share of 1 (model_flops.h); nullopt if unknown.
  std::optional<double> mfu = std::nullopt;
  std::vector<RankMetrics> ranks = {};  // Indexed by rank.
};

}  // namespace sherd::tools
