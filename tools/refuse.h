// SPDX-License-Identifier: Apache-2.0
//
// How the tools say what is wrong with a flag or a file. Thread rule: any thread.
#pragma once

#include <string>
#include <sherd/base/error.h>

namespace sherd::tools {

// Throws Error. `where` is a path or a flag.
[[noreturn]] inline void refuse(
    const std::string& where,
    const std::string& expected,
    const std::string& found,
    ErrorCode code = ErrorCode::kInvalidArgument) {
  throw Error(where + ": expected " + expected + ", found " + found, code);
}

}  // namespace sherd::tools
