// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

#include <algorithm>

namespace sherd {

std::string printable(std::string_view text, std::size_t bytes_max) {
  std::string result(text.substr(0, bytes_max));
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; },
      '?');
  return result;
}

std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : printable(text, text.size())) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
    }
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace sherd
