// SPDX-License-Identifier: Apache-2.0
//
// How the tools say what is wrong with a flag or a file. Thread rule: any thread.
#pragma once

#include <algorithm>
#include <string>
#include <vector>
#include <sherd/base/error.h>
#include "base/check.h"

namespace sherd::tools {

// Throws Error. `where` is a path or a flag.
[[noreturn]] inline void refuse(
    const std::string& where,
    const std::string& expected,
    const std::string& found,
    ErrorCode code = ErrorCode::kInvalidArgument) {
  throw Error(where + ": expected " + expected + ", found " + found, code);
}

// Refuses smaller numbers, and NaN.
template <typename Number>
void expect_at_least(const std::string& flag, double least, Number found) {
  if (!(static_cast<double>(found) >= least)) {
    refuse(flag, str("at least ", least), str(found));
  }
}

inline void expect_one_of(
    const std::string& flag,
    const std::vector<std::string>& known,
    const std::string& found) {
  if (std::find(known.begin(), known.end(), found) != known.end()) {
    return;
  }
  std::string names = known.size() > 1 ? "one of " : "";
  for (std::size_t i = 0; i < known.size(); ++i) {
    names += (i > 0 ? ", " : "") + known[i];
  }
  refuse(flag, names, "'" + found + "'");
}

}  // namespace sherd::tools
