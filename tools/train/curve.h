// SPDX-License-Identifier: Apache-2.0
//
// The curves of a run as one HTML page that needs no network: loss, learning rate and gradient norm
// by step. They are drawn here, so the page works without scripts, too; a few lines of script show
// the values under the pointer. It fits a phone and follows the browser's light or dark setting.
// Pure functions. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>
#include "train/step_metrics.h"

namespace sherd::tools {

// `title` and `facts` (one line each, such as "200 steps, 5.1k tokens/s") are plain text. Records
// without a finite loss are left out, and if there are many, so are some others: a page has about a
// thousand points, however long the run.
std::string curve_html(
    const std::string& title,
    const std::vector<std::string>& facts,
    const std::vector<StepMetrics>& records);

// Whether to write the page now: after ten steps, after each validation, and when it is some
// seconds old. `records` counts the steps so far; `validated` refers to the last one.
bool curve_is_due(std::size_t records, bool validated, double age_s);

// The exponential moving average of `values`, without the bias towards the first ones, over enough
// steps that noise goes and the shape stays: a thirtieth of all, but no more than an eighth of the
// preceding ones, since losses fall fast at first, and at least three.
std::vector<double> smoothed(const std::vector<double>& values);

}  // namespace sherd::tools
