// SPDX-License-Identifier: Apache-2.0
//
// Which parameters a list of name patterns means. Thread rule: pure, any thread.
#pragma once

#include <string>
#include <vector>

namespace sherd::optim {

// Whether the whole name matches one of the shell patterns; `*` crosses dots.
bool matches_any(
    const std::vector<std::string>& patterns, const std::string& name);

}  // namespace sherd::optim
