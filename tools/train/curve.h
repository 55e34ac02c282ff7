// SPDX-License-Identifier: Apache-2.0
//
// The loss curve of a run as one HTML page that needs no network: an SVG drawn
// here, so it shows without scripts too, and a few lines of script that show
// the values under the pointer. Follows the browser's light or dark setting.
// Pure functions. Thread rule: any thread.
#pragma once

#include <string>
#include <vector>
#include "train/step_metrics.h"

namespace sherd::tools {

// `title` and `facts` (one line each, such as "200 steps, 5.1k tokens/s") are
// plain text. Records without a finite loss are left out.
std::string curve_html(
    const std::string& title,
    const std::vector<std::string>& facts,
    const std::vector<StepMetrics>& records);

// At most about `count` round numbers (1, 2 or 5 times a power of ten apart)
// inside [low, high], ascending. REQUIRES: low < high, count >= 1.
std::vector<double> round_ticks(double low, double high, int count);

}  // namespace sherd::tools
