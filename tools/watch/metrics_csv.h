// SPDX-License-Identifier: Apache-2.0
//
// The metrics of a run as comma-separated values. Pure functions. Thread rule:
// any thread.
#pragma once

#include <string>
#include "train/step_metrics.h"

namespace sherd::tools {

// The names of the columns, those of metrics.jsonl except `ranks`, with a newline.
std::string csv_header();

// A step, with a newline. Values that were not measured or are no number are empty; numbers have
// all their digits.
std::string csv_line(const StepMetrics& record);

}  // namespace sherd::tools
