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

}  // namespace sherd
