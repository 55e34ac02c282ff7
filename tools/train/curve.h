// SPDX-License-Identifier: Apache-2.0
//
// The curves of a run as one HTML page that needs no network: loss, learning
// rate and gradient norm by step. Drawn here, so it shows without scripts too;
// a few lines of script show the values under the pointer. It fits a phone and
// follows the browser's light or dark setting. Pure functions. Thread rule: any
// thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>
#include "train/step_metrics.h"

namespace sherd::tools {

// `title` and `facts` (one line each, such as "200 steps, 5.1k tokens/s") are
// plain text. Records without a finite loss are left out, and so are some of
// many: a page has a thousand points or so, however long the run.
std::string curve_html(
    const std::string& title,
    const std::vector<std::string>& facts,
    const std::vector<StepMetrics>& records);

// Whether to write the page now: after ten steps, after each validation, and
// when it is some seconds old. `records` counts steps so far, of which the last
// was validated or not.
bool curve_is_due(std::size_t records, bool validated, double age_s);

// The exponential moving average of `values`, without the bias towards its
// beginning, over so many steps that noise goes and the shape stays: a
// thirtieth of all, but no more than an eighth of those before, since losses
// fall fast at first, and three at least.
std::vector<double> smoothed(const std::vector<double>& values);

}  // namespace sherd::tools
