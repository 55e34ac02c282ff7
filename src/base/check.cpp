// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace sherd {

void assert_failed(
    const char* file, int line, const char* condition, const std::string& why) {
  std::fprintf(
      stderr, "sherd: broken invariant at %s:%d: %s %s\n", file, line,
      condition, why.c_str());
  std::abort();
}

void throw_moved_from(const char* handle) {
  throw Error(
      str(handle,
          " was moved from; expected a call of the object that it was moved "
          "to"),
      ErrorCode::kFailedPrecondition);
}

}  // namespace sherd
