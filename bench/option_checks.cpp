// SPDX-License-Identifier: Apache-2.0
#include "bench/option_checks.h"

namespace sherd::bench {

void expect_one_of(
    const char* flag,
    const std::vector<std::string>& known,
    const std::string& found) {
  std::string names;
  for (const auto& name : known) {
    if (name == found) {
      return;
    }
    names += (names.empty() ? "" : ", ") + name;
  }
  refuse(flag, (known.size() > 1 ? "one of " : "") + names, found);
}

}  // namespace sherd::bench
