// SPDX-License-Identifier: Apache-2.0
//
// Parses numbers. Thread rule: pure functions.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace sherd {

// The number that the whole text stands for; empty if it is not a number or out of the type's
// range. `format` is what std::from_chars() takes: the base of an integer.
template <typename Number, typename... Format>
std::optional<Number> parse_number(std::string_view text, Format... format) {
  Number value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] =
      std::from_chars(text.data(), end, value, format...);
  return error == std::errc() && stop == end ? std::optional(value)
                                             : std::nullopt;
}

}  // namespace sherd
