// SPDX-License-Identifier: Apache-2.0
//
// Makes texts from other processes safe for a log, a terminal and a page, and texts of JSON. Thread
// rule: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sherd {

// The first `bytes_max` bytes, with "?" for each byte that is not a printable ASCII character, so
// the result contains neither line breaks nor terminal sequences.
std::string printable(std::string_view text, std::size_t bytes_max);

// The text, shortened to at most that many bytes. No character of UTF-8 is cut into two.
std::string_view shortened(std::string_view text, std::size_t bytes_max);

// The text for HTML, also within quotes of either kind.
std::string html_escaped(std::string_view text);

// The text as a JSON string, including the quotes, with "?" for the same bytes.
std::string json_string(std::string_view text);

inline const char* json_bool(bool value) { return value ? "true" : "false"; }

// What `print` makes of each value, as a JSON array.
template <typename Values, typename Print>
std::string json_array(const Values& values, const Print& print) {
  std::string text = "[";
  for (const auto& value : values) {
    if (text.size() > 1) {
      text += ',';
    }
    text += print(value);
  }
  return text + "]";
}

}  // namespace sherd
