// SPDX-License-Identifier: Apache-2.0
//
// Matches parameter names against patterns, for groups and split(). Thread rule: pure functions,
// any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace sherd::optim {

// Whether the whole name matches one of the shell patterns; `*` also matches dots.
bool matches_any(
    const std::vector<std::string>& patterns, const std::string& name);

// The same for a parameter that may have further names, as NamedParameters::tied_names.
bool matches_any(
    const std::vector<std::string>& patterns,
    const std::string& name,
    const std::map<std::string, std::string>& tied_names);

}  // namespace sherd::optim
