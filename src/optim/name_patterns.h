// SPDX-License-Identifier: Apache-2.0
//
// Matches parameter names against patterns, for groups and split(). Thread rule: pure functions,
// any thread.
#pragma once

#include <string>
#include <vector>

namespace sherd::optim {

// Whether the whole name matches one of the shell patterns; `*` also matches dots.
bool matches_any(
    const std::vector<std::string>& patterns, const std::string& name);

}  // namespace sherd::optim
