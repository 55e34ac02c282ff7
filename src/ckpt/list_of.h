// SPDX-License-Identifier: Apache-2.0
//
// Lists of names in messages. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>
#include "base/check.h"

namespace sherd::ckpt {

// The first five names, and how many more there are.
inline std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  return names.size() > kShown
      ? str(text, " and ", names.size() - kShown, " more")
      : text;
}

}  // namespace sherd::ckpt
