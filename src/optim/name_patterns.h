// SPDX-License-Identifier: Apache-2.0
//
// Matching of parameter names against patterns, for groups and split(). Thread rule: pure, any
// thread.
#pragma once

#include <string>
#include <vector>

namespace sherd::optim {

// Whether the whole name matches one of the shell patterns; `*` crosses dots.
bool matches_any(
    const std::vector<std::string>& patterns, const std::string& name);

}  // namespace sherd::optim
