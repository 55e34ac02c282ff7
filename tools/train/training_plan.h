// SPDX-License-Identifier: Apache-2.0
//
// What `sherd train --plan` reports before anything is trained. A value and a pure function. Thread
// rule: any thread.
#pragma once

#include <cstdint>
#include <string>
#include "train/config.h"

namespace sherd::tools {

struct TrainingPlan {
  TrainConfig config = {};
  std::int64_t parameters = 0;  // In the whole model.
  std::string corpus = {};      // Its path.
  std::int64_t corpus_tokens = 0;
  int ranks = 1;

  // Bytes of one rank, the most of any rank.
  std::int64_t parameter_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t optimizer_bytes = 0;
  // The most for whole units, in addition to the shards.
  // Gradients in flight.
  std::int64_t unit_bytes = 0;
  std::int64_t slot_bytes = 0;
  std::int64_t before_bytes = 0;    // Resident memory before the first step.
  std::int64_t resident_bytes = 0;  // The most resident memory.

  std::int64_t steps_measured = 0;  // The time is that of the last one.
  double step_s = 0;
  // The cost of memory limits; may be empty.
  std::string limits = {};
};

// Lines for people, with a newline at the end.
std::string plan_text(const TrainingPlan& plan);

}  // namespace sherd::tools
