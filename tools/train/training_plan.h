// SPDX-License-Identifier: Apache-2.0
//
// What `sherd train --plan` tells before anything is trained. A value and a pure function. Thread
// rule: any thread.
#pragma once

#include <cstdint>
#include <string>
#include "train/config.h"

namespace sherd::tools {

struct TrainingPlan {
  TrainConfig config = {};
  std::int64_t parameters = 0;  // Of the whole model.
  std::string corpus = {};      // Its path.
  std::int64_t corpus_tokens = 0;
  int ranks = 1;

  // Bytes of one rank, the most of any.
  std::int64_t parameter_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t optimizer_bytes = 0;
  std::int64_t unit_bytes = 0;      // Whole units at most, beyond the shards.
  std::int64_t slot_bytes = 0;      // Gradients on their way.
  std::int64_t before_bytes = 0;    // Resident before the first step.
  std::int64_t resident_bytes = 0;  // Resident at most.

  std::int64_t steps_measured = 0;  // The last one has the time.
  double step_s = 0;
  // What limits of memory would cost; may be empty.
  std::string limits = {};
};

// Lines for people, the last one ended.
std::string plan_text(const TrainingPlan& plan);

}  // namespace sherd::tools
